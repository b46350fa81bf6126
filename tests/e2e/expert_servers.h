// Fixture for tests of servers whose workers copy experts from a file.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {

inline constexpr int kTokens = 24;
inline constexpr char kPrompts[][40] = {"The", "Once upon a time there was", "def main():", "In 1969", "x = 3 + 4 #"};

// Returns the tokens of requests sent one after the other, then all at once.
inline std::vector<std::vector<int32_t>> Tokens(TestServer* server) {
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

inline double MetricValue(const std::string& page, const std::string& name) {
  double value = -1;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2 || parts[0] != name) continue;
    EXPECT_TRUE(absl::SimpleAtod(parts[1], &value)) << line;
  }
  return value;
}

// Returns the sum over workers of a metric, which is named without its prefix switchyard_worker_.
inline double Sum(TestServer* server, const std::string& name) {
  double sum = 0;
  const auto load = server->client().GetLoad();
  EXPECT_TRUE(load.ok()) << load.status();
  for (const v1::WorkerLoad& worker : load->workers()) {
    sum += MetricValue(Scrape(worker.metrics_address()), absl::StrCat("switchyard_worker_", name));
  }
  return sum;
}

class ExpertServersTest : public testing::Test {
 protected:
  struct ServerCase {
    int workers;
    std::vector<std::string> flags;
  };
  // That a server of each case, with `flag` too, gives the tokens that Tokens returned of another.
  void ExpectTokensOfEach(const std::vector<std::vector<int32_t>>& expected, const std::string& flag,
                          const std::vector<ServerCase>& cases) {
    for (ServerCase c : cases) {
      SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags.empty() ? "" : c.flags[0]));
      c.flags.push_back(flag);
      const auto server = Start(c.workers, c.flags);
      ASSERT_NE(server, nullptr);
      EXPECT_EQ(Tokens(server.get()), expected);
    }
  }

  std::unique_ptr<TestServer> Start(int workers, std::vector<std::string> flags) {
    if (HasExpertFile(flags)) flags.push_back(absl::StrCat("--expert_file_dir=", dir_.path()));
    flags.push_back("--threads=1");
    return TestServer::Start({.workers = workers, .flags = std::move(flags)});
  }
  // Returns the output of a server that does not start.
  std::string Refusal(const std::vector<std::string>& flags) {
    std::vector<std::string> args = {Binary("switchyard-server"), absl::StrCat("--model=", kDemoModel), "--port=0",
                                     "--metrics_port=-1"};
    if (HasExpertFile(flags)) args.push_back(absl::StrCat("--expert_file_dir=", dir_.path()));
    args.insert(args.end(), flags.begin(), flags.end());
    const auto process = Process::Start(args);
    EXPECT_EQ(process->Wait(kStartLimit), 2);
    return process->Output();
  }

  static bool HasExpertFile(const std::vector<std::string>& flags) {
    return std::any_of(flags.begin(), flags.end(), [](const std::string& flag) {
      return absl::StartsWith(flag, "--expert_memory=") || absl::StartsWith(flag, "--placement=");
    });
  }

  model::TempDir dir_;
};

}  // namespace switchyard
