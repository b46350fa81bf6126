// --expert_budget: the same tokens as with every expert resident, in fewer slots; what is said where it cannot be.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int kTokens = 24;
constexpr char kPrompts[][40] = {"The", "Once upon a time there was", "def main():", "In 1969", "x = 3 + 4 #"};

// Of one after the other, then of all at once.
std::vector<std::vector<int32_t>> Tokens(TestServer* server) {
  std::vector<v1::GenerateRequest> requests;
  for (const char* prompt : kPrompts) requests.push_back(TextRequest(prompt, kTokens));
  std::vector<StreamSeen> seen = GenerateAll(server->client(), requests);
  for (const v1::GenerateRequest& request : requests) seen.push_back(Generate(server->client(), request));
  std::vector<std::vector<int32_t>> tokens;
  for (const StreamSeen& one : seen) {
    EXPECT_TRUE(one.ok()) << one.end << " " << one.fault;
    tokens.push_back(one.choices.empty() ? std::vector<int32_t>() : one.choices[0].token_ids);
  }
  return tokens;
}

double Value(const std::string& page, const std::string& name) {
  double value = -1;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2 || parts[0] != name) continue;
    EXPECT_TRUE(absl::SimpleAtod(parts[1], &value)) << line;
  }
  return value;
}

// Over the workers.
double Sum(TestServer* server, const std::string& name) {
  double sum = 0;
  const auto load = server->client().GetLoad();
  EXPECT_TRUE(load.ok()) << load.status();
  for (const v1::WorkerLoad& worker : load->workers()) {
    sum += Value(Scrape(worker.metrics_address()), absl::StrCat("switchyard_worker_expert_", name));
  }
  return sum;
}

class ExpertBudgetTest : public testing::Test {
 protected:
  std::unique_ptr<TestServer> Start(int workers, std::vector<std::string> flags) {
    flags.push_back(absl::StrCat("--expert_file_dir=", dir_.path()));
    flags.push_back("--threads=1");
    return TestServer::Start({.workers = workers, .flags = std::move(flags)});
  }
  // What a server says that does not start.
  std::string Refusal(const std::vector<std::string>& flags) {
    std::vector<std::string> args = {Binary("switchyard-server"), absl::StrCat("--model=", kDemoModel), "--port=0",
                                     "--metrics_port=-1", absl::StrCat("--expert_file_dir=", dir_.path())};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto process = Process::Start(args);
    EXPECT_EQ(process->Wait(kStartLimit), 2);
    return process->Output();
  }

  TempDir dir_;
};

TEST_F(ExpertBudgetTest, TheTokensOfResidentExperts) {
  const auto resident = Start(1, {});
  ASSERT_NE(resident, nullptr);
  const auto expected = Tokens(resident.get());
  EXPECT_EQ(Sum(resident.get(), "misses_total"), 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  struct Case {
    int workers;
    std::vector<std::string> flags;
  };
  for (const Case& c : std::vector<Case>{{1, {"--expert_budget=25%"}},
                                         {2, {"--expert_budget=25%"}},
                                         {1, {"--expert_budget=5%", "--expert_policy=lru"}},
                                         {2, {"--expert_budget=50%", "--expert_copy_bytes_per_second=5e7"}},
                                         {2, {"--expert_budget=1500000", "--expert_policy=static"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags[0]));
    const auto server = Start(c.workers, c.flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
    const double misses = Sum(server.get(), "misses_total") + Sum(server.get(), "late_total");
    EXPECT_GT(misses, 0);
    EXPECT_GT(Sum(server.get(), "hits_total"), 0);
    EXPECT_GT(Sum(server.get(), "copied_bytes_total"), misses * 100000);
    EXPECT_GT(Sum(server.get(), "wait_seconds_total"), 0);
  }
  // One file, whatever the workers.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(ExpertBudgetTest, SaysWhatCannotBe) {
  EXPECT_THAT(Refusal({"--expert_budget=120%"}),
              HasSubstr("--expert_budget=120%: must be a share within (0%, 100%], or bytes, at least 1"));
  EXPECT_THAT(Refusal({"--expert_budget=50%", "--expert_policy=best"}),
              HasSubstr("--expert_policy=best: must be expected_use, lru, lfu or static"));
  EXPECT_THAT(Refusal({"--expert_budget=100000"}),
              HasSubstr("--expert_budget=100000: holds 0 of this worker's 128 experts of 110592 bytes; at least 3 must "
                        "fit, a token's 2 and one that is copied: 331776 bytes"));
  EXPECT_THAT(Refusal({"--expert_budget=50%", "--device=cuda"}), HasSubstr("is for the CPU so far"));
  EXPECT_THAT(Refusal({"--expert_copy_bytes_per_second=-1"}),
              HasSubstr("--expert_copy_bytes_per_second=-1: must not be negative or endless"));
}

// A worker would find the same with every start: the server ends, with the worker's words.
TEST_F(ExpertBudgetTest, ADirectoryThatCannotBeUsedIsSaidOnce) {
  EXPECT_THAT(Refusal({"--expert_budget=50%", "--expert_file_dir=/dev/null/x"}),
              HasSubstr("--expert_file_dir=/dev/null/x: expert file /dev/null/x/switchyard-experts-"));
  ASSERT_NE(Start(1, {"--expert_budget=50%"}), nullptr);
  for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
    std::filesystem::permissions(file, std::filesystem::perms::all);
  }
  EXPECT_THAT(Refusal({"--expert_budget=50%"}), HasSubstr("with mode 0600, is of user"));
}

}  // namespace
}  // namespace switchyard
