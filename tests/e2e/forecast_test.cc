// Routing profiles: saved when workers end, merged, and used by the next workers; tokens stay the same.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kPrompt[] = "Once upon a time there was a";
constexpr int kTokens = 60;

std::vector<int32_t> Tokens(TestServer* server) {
  const StreamSeen seen = Generate(server->client(), TextRequest(kPrompt, kTokens));
  EXPECT_TRUE(seen.ok()) << seen.end;
  return seen.choices.empty() ? std::vector<int32_t>() : seen.choices[0].token_ids;
}

std::string OutputOf(std::vector<std::string> args, int exit_code) {
  args.insert(args.begin(), Binary("switchyard"));
  const auto process = Process::Start(args);
  EXPECT_EQ(process->Wait(kStartLimit), exit_code) << process->Output();
  return process->Output();
}

TEST(ForecastTest, WhatWorkersLearnedIsSavedMergedAndTaken) {
  const model::TempDir dir;
  const std::string path = absl::StrCat(dir.path(), "/learned"), merged = absl::StrCat(dir.path(), "/merged");
  std::vector<int32_t> expected;
  {
    const auto server = TestServer::Start({.workers = 2, .flags = {absl::StrCat("--profile_out=", path)}});
    ASSERT_NE(server, nullptr);
    expected = Tokens(server.get());
    for (int i = 0; i < 8; ++i) EXPECT_EQ(Tokens(server.get()), expected);
    server->process().Signal(SIGTERM);
    ASSERT_EQ(server->process().Wait(kStartLimit), 0) << server->process().Output();
  }
  OutputOf({"profile", "merge", absl::StrCat(path, ".0"), absl::StrCat(path, ".1"), "--output=" + merged}, 0);
  const std::string shown = OutputOf({"profile", "show", merged}, 0);
  EXPECT_THAT(shown, HasSubstr("decode, predicted by gate_ahead:"));
  EXPECT_THAT(shown, HasSubstr("probe of layer 7 from layer 6: fitted on"));
  const auto server = TestServer::Start({.workers = 1, .flags = {"--profile=" + merged}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Tokens(server.get()), expected);
}

TEST(ForecastTest, WhatWorkersLearnedCanBeHadWhileTheyServe) {
  const model::TempDir dir;
  const std::string path = absl::StrCat(dir.path(), "/live");
  std::vector<int32_t> expected;
  std::string hash;
  {
    const auto server = TestServer::Start({.workers = 2, .flags = {"--forecast=always"}});
    ASSERT_NE(server, nullptr);
    const std::string at = absl::StrCat("--server=", server->admin_address()), out = "--output=" + path;
    EXPECT_THAT(OutputOf({"profile", "save", at, out, "--weights_hash=older"}, 1),
                HasSubstr("weights_hash: is \"older\", the served model's is "));
    EXPECT_THAT(OutputOf({"profile", "save", at, out}, 1), HasSubstr("no token was routed"));
    expected = Tokens(server.get());
    // Each of both has some.
    std::vector<v1::GenerateRequest> requests(8, TextRequest(kPrompt, kTokens));
    for (const StreamSeen& seen : GenerateAll(server->client(), requests)) EXPECT_TRUE(seen.ok()) << seen.end;
    EXPECT_THAT(OutputOf({"profile", "save", at, out}, 0), HasSubstr("[asking worker 1 of 2, "));
    EXPECT_EQ(Tokens(server.get()), expected) << "they serve on";
    const auto info = server->client().GetModelInfo();
    ASSERT_TRUE(info.ok()) << info.status();
    hash = info->weights_hash();
  }
  const std::string shown = OutputOf({"profile", "show", path}, 0);
  EXPECT_THAT(shown, HasSubstr("model: " + hash));
  // Of 9 requests, whichever of both they were with; the last token of each is not routed.
  EXPECT_THAT(shown, HasSubstr(absl::StrCat("layer 0: ", 9 * (expected.size() - 1), " tokens")));
  const auto server = TestServer::Start({.workers = 1, .flags = {"--profile=" + path}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Tokens(server.get()), expected);
}

TEST(ForecastTest, WorkersThatLearnNothingSaySo) {
  const auto server = TestServer::Start({.workers = 1, .flags = {"--forecast=never"}});
  ASSERT_NE(server, nullptr);
  Tokens(server.get());
  EXPECT_THAT(
      OutputOf({"profile", "save", absl::StrCat("--server=", server->admin_address()), "--output=/dev/null"}, 1),
      HasSubstr("worker 0: learns nothing: coming layers are not forecast"));
}

TEST(ForecastTest, AProfileThatCannotBeUsedIsRefusedAtTheStart) {
  const model::TempDir dir;
  const auto refusal = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {Binary("switchyard-server"), absl::StrCat("--model=", kDemoModel), "--port=0",
                                     "--metrics_port=-1"};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto process = Process::Start(args);
    EXPECT_EQ(process->Wait(kStartLimit), 2);
    return process->Output();
  };
  EXPECT_THAT(refusal({"--forecast=perhaps"}), HasSubstr("--forecast=perhaps: must be auto, always or never"));
  EXPECT_THAT(refusal({absl::StrCat("--profile=", dir.path(), "/none")}), HasSubstr("/none: cannot be read"));
  EXPECT_THAT(refusal({absl::StrCat("--profile=", kDemoModel, "/config.json")}),
              HasSubstr("does not begin with SYBUND01"));
}

}  // namespace
}  // namespace switchyard
