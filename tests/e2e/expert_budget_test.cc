// --expert_memory: the same tokens in fewer slots than experts; errors for impossible budgets.
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"
#include "tests/e2e/process.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using ExpertBudgetTest = ExpertServersTest;

TEST_F(ExpertBudgetTest, TheTokensOfResidentExperts) {
  const auto resident = Start(1, {});
  ASSERT_NE(resident, nullptr);
  const auto expected = Tokens(resident.get());
  EXPECT_EQ(Sum(resident.get(), "expert_misses_total"), 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  struct Case {
    int workers;
    std::vector<std::string> flags;
    int least_hits = 1;
  };
  // 7 slots may have seen other experts 128 times before the same layer comes again: there LRU need not hit.
  for (const Case& c : std::vector<Case>{{1, {"--expert_memory=25%"}},
                                         {2, {"--expert_memory=25%"}},
                                         {1, {"--expert_memory=5%", "--expert_policy=lru"}, 0},
                                         {2, {"--expert_memory=50%", "--expert_copy_bytes_per_second=5e7"}},
                                         {2, {"--expert_memory=1500000", "--expert_policy=lru"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags[0]));
    const auto server = Start(c.workers, c.flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
    const double misses = Sum(server.get(), "expert_misses_total") + Sum(server.get(), "expert_late_total");
    EXPECT_GT(misses, 0);
    EXPECT_GE(Sum(server.get(), "expert_hits_total"), c.least_hits);
    EXPECT_GT(Sum(server.get(), "expert_copied_bytes_total"), misses * 100000);
    EXPECT_GT(Sum(server.get(), "expert_wait_seconds_total"), 0);
  }
  // One file, whatever the workers.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(ExpertBudgetTest, SaysWhatCannotBe) {
  EXPECT_THAT(Refusal({"--expert_memory=120%"}),
              HasSubstr("--expert_memory=120%: must be a share within (0%, 100%], or bytes, at least 1"));
  EXPECT_THAT(Refusal({"--expert_memory=50%", "--expert_policy=best"}),
              HasSubstr("--expert_policy=best: must be auto or lru"));
  EXPECT_THAT(Refusal({"--expert_memory=100000"}),
              HasSubstr("--expert_memory=100000: holds 0 of this worker's 128 experts of 110592 bytes; at least 3 must "
                        "fit, a token's 2 and one that is copied: 331776 bytes"));
  EXPECT_THAT(Refusal({"--expert_copy_bytes_per_second=-1"}),
              HasSubstr("--expert_copy_bytes_per_second=-1: must not be negative or endless"));
}

TEST_F(ExpertBudgetTest, AFileThatWasPackedBeforeIsFound) {
  const auto pack = [this](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {Binary("switchyard-worker"), "--pack_experts", "--expert_file_dir=" + dir_.path()};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto process = Process::Start(args);
    const std::optional<int> code = process->Wait(absl::Seconds(60));
    return absl::StrCat(code.value_or(-1), " ", process->Output());
  };
  const std::string model = absl::StrCat("--model=", kDemoModel);
  EXPECT_THAT(pack({model}), AllOf(StartsWith("0 "), HasSubstr("packed 128 experts in "), HasSubstr(dir_.path())));
  const auto file_number = [this] {
    struct stat status = {};
    const std::filesystem::directory_iterator file(dir_.path());
    EXPECT_EQ(stat(file->path().c_str(), &status), 0);
    return status.st_ino;
  };
  const auto packed = file_number();
  ASSERT_NE(Start(1, {"--expert_memory=25%"}), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
  EXPECT_EQ(file_number(), packed);
  EXPECT_THAT(pack({model}), AllOf(StartsWith("0 "), HasSubstr("found 128 experts in ")));
  EXPECT_THAT(pack({}), AllOf(StartsWith("2 "), HasSubstr("--model: missing")));
  EXPECT_THAT(pack({model, "--expert_memory=0"}), AllOf(StartsWith("2 "), HasSubstr("--expert_memory=0: must be")));
  EXPECT_THAT(pack({"--role=train"}), AllOf(StartsWith("2 "), HasSubstr("--role")));
}

// A worker would fail at every start, so the server ends with the worker's message.
TEST_F(ExpertBudgetTest, ADirectoryThatCannotBeUsedIsSaidOnce) {
  EXPECT_THAT(Refusal({"--expert_memory=50%", "--expert_file_dir=/dev/null/x"}),
              HasSubstr("--expert_file_dir=/dev/null/x: expert file /dev/null/x/switchyard-experts-"));
  ASSERT_NE(Start(1, {"--expert_memory=50%"}), nullptr);
  for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
    std::filesystem::permissions(file, std::filesystem::perms::all);
  }
  EXPECT_THAT(Refusal({"--expert_memory=50%"}), HasSubstr("with mode 0600, is of user"));
}

}  // namespace
}  // namespace switchyard
