// `switchyard quantize` as far as it is the CLI's: its flags, and the program that it becomes where there is none.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/cli_run.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(QuantizeCommandTest, FlagsAreCheckedBeforeAnythingIsStarted) {
  const client::CliRun none = client::RunCliWith({"quantize"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("--model is required"), HasSubstr("--output is required"),
                              HasSubstr("--format is required"), HasSubstr("see: switchyard help quantize")));
  const client::CliRun group =
      client::RunCliWith({"quantize", "--model=a", "--output=b", "--format=int4", "--group_size=4"});
  EXPECT_EQ(group.exit_code, 2);
  EXPECT_THAT(group.err, HasSubstr("--group_size=4: must be a number from 8 to 1024"));
}

// The program of tests has none beside it.
TEST(QuantizeCommandTest, AMissingProgramIsNamed) {
  const client::CliRun run = client::RunCliWith({"quantize", "--model=a", "--output=b", "--format=int4"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, AllOf(HasSubstr("/switchyard-quantize: No such file"), HasSubstr("beside this program")));
}

TEST(QuantizeCommandTest, HelpSaysWhatItWrites) {
  const client::CliRun run = client::RunCliWith({"help", "quantize"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("--format=NAME"), HasSubstr("compressed-tensors")));
}

}  // namespace
}  // namespace switchyard::cli
