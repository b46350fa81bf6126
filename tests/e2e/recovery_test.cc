// A server that has served does not end when its workers fail to start: they try again.
#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);

// A copy of the tiny model whose files a test may take away.
class ModelCopy {
 public:
  ModelCopy() {
    std::string pattern = (fs::temp_directory_path() / "model.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors"}) {
      if (fs::exists(fs::path(kTinyModel) / file)) fs::copy_file(fs::path(kTinyModel) / file, path_ / file);
    }
  }
  ~ModelCopy() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(RecoveryTest, AWorkerThatCannotLoadAfterServingIsTriedAgain) {
  const ModelCopy model;
  const auto server = TestServer::Start({.model = model.path(), .workers = 2});
  ASSERT_NE(server, nullptr);
  const StreamSeen before = Generate(server->client(), IdsRequest({5, 6, 7}, 16));
  ASSERT_TRUE(before.ok()) << before.end;

  fs::rename(model.path() / "model.safetensors", model.path() / "away");
  const std::vector<pid_t> pids = server->WorkerPids();
  ASSERT_EQ(pids.size(), 2u);
  ASSERT_EQ(kill(pids[1], SIGKILL), 0);
  ASSERT_TRUE(server->WaitReady(false, kLimit));
  EXPECT_TRUE(server->process().WaitForOutput("could not serve what was served before", kLimit));
  StreamSeen waited;
  const auto waiting = server->client().StartGenerate(
      IdsRequest({5, 6, 7}, 16),
      {.on_message = [&waited](const v1::GenerateResponse& message) { waited.Add(message); }, .on_done = nullptr});
  ASSERT_TRUE(WaitUntil([&] { return server->client().GetLoad()->waiting_requests() == 1; }, kLimit));

  fs::rename(model.path() / "away", model.path() / "model.safetensors");
  ASSERT_TRUE(server->WaitReady(true, kLimit)) << "the server ended, or its worker was given up";
  const absl::Status end = waiting->Wait();
  ASSERT_TRUE(end.ok()) << end;
  EXPECT_EQ(waited.choices.at(0).token_ids, before.choices.at(0).token_ids);
  const StreamSeen after = Generate(server->client(), IdsRequest({5, 6, 7}, 16));
  ASSERT_TRUE(after.ok()) << after.end;
  EXPECT_EQ(after.choices.at(0).token_ids, before.choices.at(0).token_ids);
  EXPECT_THAT(Scrape(server->metrics_address()),
              ContainsRegex("switchyard_local_worker_restarts_total\\{[^}]*\\} ([2-9]|[1-9][0-9]+)"));
}

TEST(RecoveryTest, AWorkerThatCannotLoadAtFirstEndsTheServer) {
  const ModelCopy model;
  fs::resize_file(model.path() / "model.safetensors", 100);
  const auto process = Process::Start({Binary("switchyard-server"), absl::StrCat("--model=", model.path().string()),
                                       "--port=0", "--metrics_port=-1", "--local_workers=1"});
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->Wait(kLimit), 2) << process->Output();
  EXPECT_THAT(process->Output(), HasSubstr("model.safetensors"));
}

// Workers get the step's limit: they, not the server, notice that it has passed, and name the rank for which they
// waited.
TEST(RecoveryTest, TheStepTimeoutIsTheWorkersToo) {
  const auto server = TestServer::Start({.model = kDemoModel,
                                         .workers = 2,
                                         .flags = {"--step_timeout=1ms", "--row_timeout=0s", "--on_worker_loss=fail"}});
  ASSERT_NE(server, nullptr);
  const StreamSeen seen = Generate(server->client(), IdsRequest(RandomIds(900, 512, 1), 4));
  EXPECT_EQ(seen.end.code(), absl::StatusCode::kUnavailable) << seen.end;
  EXPECT_EQ(client::Describe(seen.end).reason, "WORKER_LOST");
  // The rank whose limit passes first reports it and leaves; the other may report that first.
  EXPECT_THAT(std::string(seen.end.message()),
              testing::AnyOf(testing::AllOf(HasSubstr("of class all_to_all"), HasSubstr("in time")),
                             HasSubstr("is gone during all_to_all_v")));
}

// A step that always takes too long ends what asks for it, after it has been tried apart, and not the server.
TEST(RecoveryTest, ARequestThatKillsItsWorkersEndsAlone) {
  const auto server =
      TestServer::Start({.model = kDemoModel, .workers = 2, .flags = {"--step_timeout=1ms", "--row_timeout=0s"}});
  ASSERT_NE(server, nullptr);
  const auto poisoned = server->client().StartGenerate(IdsRequest(RandomIds(1000, 512, 1), 4), {});
  const absl::Status end = poisoned->Wait();
  EXPECT_EQ(end.code(), absl::StatusCode::kInternal) << end;
  EXPECT_EQ(client::Describe(end).reason, "KILLS_WORKERS");
  ASSERT_TRUE(server->WaitReady(true, kLimit));
  EXPECT_EQ(server->client().GetLoad()->running_requests(), 0);
}

// More prompt logprobs in one step than one message of 4 MiB holds.
TEST(RecoveryTest, AStepsLongResultDoesNotCostTheGroup) {
  const auto server = TestServer::Start({.model = kDemoModel, .flags = {"--max_batched_tokens=32768"}});
  ASSERT_NE(server, nullptr);
  std::vector<v1::GenerateRequest> requests;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    requests.push_back(IdsRequest(RandomIds(1000, 512, seed), 1));
    requests.back().set_prompt_logprobs(20);
  }
  const std::vector<StreamSeen> seen = GenerateAll(server->client(), requests);
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_TRUE(seen[i].ok()) << seen[i].end << seen[i].fault;
    ASSERT_EQ(seen[i].prompt_logprobs.size(), 999u);
    for (size_t p = 0; p < 999; ++p) {
      ASSERT_EQ(seen[i].prompt_logprobs[p].chosen().token_id(), requests[i].token_ids().ids(static_cast<int>(p) + 1));
      ASSERT_EQ(seen[i].prompt_logprobs[p].top_size(), 20);
    }
  }
  EXPECT_EQ(server->client().GetLoad()->group_epoch(), 1) << "the group was lost";
}

TEST(RecoveryTest, ASecondInterruptEndsTheDrain) {
  const auto server = TestServer::Start({.model = kDemoModel, .flags = {"--preempt_every_step"}});
  ASSERT_NE(server, nullptr);
  Process& process = server->process();
  const auto stream = server->client().StartGenerate(TextRequest("The", 900), {});
  ASSERT_TRUE(WaitUntil([&] { return server->client().GetLoad()->running_requests() == 1; }, kLimit));
  process.Signal(SIGINT);
  ASSERT_TRUE(process.WaitForOutput("stopping: running requests may end", kLimit));
  const absl::Time start = absl::Now();
  process.Signal(SIGINT);
  EXPECT_TRUE(process.WaitForOutput("asked again", kLimit));
  EXPECT_EQ(process.Wait(kLimit), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  const absl::Status end = stream->Wait();
  EXPECT_EQ(client::Describe(end).reason, "DRAINING") << end;
}

TEST(RecoveryTest, AnOrderlyStopIsNoLoss) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 2});
  ASSERT_NE(server, nullptr);
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().Wait(kLimit), 0);
  const std::string log = server->process().Output();
  EXPECT_THAT(log, HasSubstr("stopped"));
  const std::string end = log.substr(log.find("stopping: "));
  EXPECT_THAT(end, testing::Not(HasSubstr("lost"))) << log;
  EXPECT_THAT(end, testing::Not(testing::ContainsRegex("\n[WE] [0-9]"))) << "no warnings";
}

}  // namespace
}  // namespace switchyard
