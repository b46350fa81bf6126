// switchyard data pack: what is asked for, and how far the packing is.
#include <string>
#include <vector>

#include "tests/clients/cli/train_fixture.h"

namespace switchyard::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(TrainCommandTest, DataPack) {
  training_.packing.resize(4);
  for (int i = 0; i < 4; ++i) {
    training_.packing[static_cast<size_t>(i)].set_bytes_done(100 * i);
    training_.packing[static_cast<size_t>(i)].set_bytes_total(300);
  }
  training_.packing[3].set_done(true);
  training_.packing[3].set_documents(7);
  training_.packing[3].set_tokens(1000);
  training_.packing[3].set_trained_tokens(900);
  const std::vector<std::string> args = {
      "data", "pack", "a.jsonl", "b.jsonl", "--output=t.bin", "--tokenizer=demo", training_.flag()};
  const client::CliRun run = client::RunCliWith(args);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "t.bin: 7 documents, 1000 tokens, 900 of them trained\n");
  EXPECT_EQ(run.err,
            "[packed 0 % of 300 bytes]\n[packed 30 % of 300 bytes]\n[packed 60 % of 300 bytes]\n[packed 100 % of 300 "
            "bytes]\n");
  EXPECT_THAT(training_.packed.inputs(), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(training_.packed.output(), "t.bin");
  EXPECT_EQ(training_.packed.tokenizer(), "demo");
  training_.packing.resize(2);
  EXPECT_THAT(client::RunCliWith(args).err, HasSubstr("did not say what it packed"));
  training_.status = rpc::ToGrpcStatus(
      rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FILE, "a.jsonl:3 (byte 12): text: expected a text"),
      "");
  const client::CliRun bad = client::RunCliWith(args);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("a.jsonl:3 (byte 12): text: expected a text [INVALID_ARGUMENT BAD_FILE]"));
  EXPECT_EQ(client::RunCliWith({"data", "pack", "a.jsonl", training_.flag()}).exit_code, 2);
}

}  // namespace
}  // namespace switchyard::cli
