// Jobs on serving workers, end to end: answers and jobs have the same bits as alone, also after faults.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

std::vector<v1::GenerateRequest> Requests() {
  return {TextRequest("The sea", 40), TextRequest("A worker that", 24), TextRequest("One", 60)};
}

// Of seconds, so that they are under way when a worker is killed.
std::vector<v1::GenerateRequest> LongRequests() {
  return {TextRequest("The sea", 800), TextRequest("A worker that", 800), TextRequest("One", 800)};
}

std::vector<std::vector<int32_t>> TokensOf(const std::vector<StreamSeen>& streams) {
  std::vector<std::vector<int32_t>> tokens;
  for (const StreamSeen& seen : streams) {
    EXPECT_TRUE(seen.ok()) << seen.end << seen.fault;
    tokens.push_back(seen.choices.empty() ? std::vector<int32_t>() : seen.choices[0].token_ids);
  }
  return tokens;
}

class TrainSlicesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(training_.Start());
    alone_ = TokensOf(GenerateAll(client(), Requests()));
    // The job's bits, on workers that do nothing else.
    v1::JobSpec spec = Spec();
    spec.set_on_serving_workers(false);
    const auto submitted = training_.Submit(spec);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const v1::Job whole = training_.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
    ASSERT_EQ(whole.state(), v1::JOB_STATE_SUCCEEDED) << whole.DebugString();
    undisturbed_ = ContentsOf(whole);
  }
  client::Client& client() { return training_.server()->client(); }
  // Of some seconds, on two workers.
  static v1::JobSpec Spec() {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.set_steps(300);
    spec.mutable_checkpoints()->set_every_steps(20);
    spec.set_on_serving_workers(true);
    spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
    return spec;
  }
  std::map<std::string, std::string> ContentsOf(const v1::Job& job) const {
    return TrainingServer::Contents(training_.root() / "checkpoints" / job.checkpoint().folder());
  }
  void ExpectUndisturbed(const v1::Job& job) const {
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
    EXPECT_EQ(undisturbed_.size(), 4u) << "weights and optimizer of two ranks";
    EXPECT_TRUE(ContentsOf(job) == undisturbed_);
  }

  TrainingServer training_{2, {"--train_on_serving", "--train_yield_ms=40"}, 2};
  std::vector<std::vector<int32_t>> alone_;
  std::map<std::string, std::string> undisturbed_;
};

TEST_F(TrainSlicesTest, AnswersAndTheJobHaveTheirBits) {
  const auto submitted = training_.Submit(Spec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const std::string id = submitted->id();
  training_.WaitFor(id, [](const v1::Job& job) { return job.progress().step() >= 1; });
  // Sends bursts of requests, with pauses in which the job makes progress, from its first step to its last save.
  int bursts = 0;
  int64_t next_burst = 0;  // from this step on
  v1::Job job = training_.WaitFor(id, [&](const v1::Job& seen) {
    const bool over = seen.state() != v1::JOB_STATE_RUNNING;
    if (!over && seen.progress().step() < next_burst) return false;
    EXPECT_EQ(TokensOf(GenerateAll(client(), Requests())), alone_);
    ++bursts;
    next_burst = seen.progress().step() + 50;
    return over;
  });
  EXPECT_GE(bursts, 2);
  ExpectUndisturbed(job);
  EXPECT_EQ(job.attempt(), 1);
  const std::string page = Scrape(training_.server()->metrics_address());
  EXPECT_GT(Value(page, "switchyard_train_slices_total"), 1);
  EXPECT_GT(Value(page, "switchyard_train_slice_seconds_total"), 0);
}

TEST_F(TrainSlicesTest, AKilledWorkerEndsNeither) {
  const std::vector<v1::GenerateRequest> requests = LongRequests();
  const std::vector<std::vector<int32_t>> alone = TokensOf(GenerateAll(client(), requests));
  const std::vector<pid_t> pids = training_.server()->WorkerPids();
  ASSERT_EQ(pids.size(), 2u);
  const auto submitted = training_.Submit(Spec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const std::string id = submitted->id();
  training_.WaitFor(id, [](const v1::Job& job) { return job.checkpoint().step() >= 20; });
  std::vector<StreamSeen> streams(requests.size());
  std::atomic<size_t> begun{0};
  std::vector<std::unique_ptr<client::GenerateStream>> calls;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto on_message = [&begun, seen = &streams[i]](const v1::GenerateResponse& message) {
      if (seen->choices.empty()) ++begun;
      seen->Add(message);
    };
    calls.push_back(client().StartGenerate(requests[i], {.on_message = on_message, .on_done = nullptr}));
  }
  EXPECT_TRUE(WaitUntil([&] { return begun == requests.size(); }, kStartLimit));
  EXPECT_EQ(kill(pids[1], SIGKILL), 0);
  // As without training: interrupted streams go on.
  for (size_t i = 0; i < calls.size(); ++i) streams[i].end = calls[i]->Wait();
  EXPECT_EQ(TokensOf(streams), alone);
  ASSERT_TRUE(training_.server()->WaitReady(true, kStartLimit));
  EXPECT_TRUE(WaitUntil(
      [&] { return Value(Scrape(training_.server()->metrics_address()), "switchyard_num_outlived_losses_total") > 0; },
      kStartLimit))
      << "nothing was interrupted";
  EXPECT_EQ(TokensOf(GenerateAll(client(), Requests())), alone_);
  const v1::Job job = training_.WaitUntilIn(id, v1::JOB_STATE_SUCCEEDED);
  ExpectUndisturbed(job);
  EXPECT_GE(job.attempt(), 2);
  EXPECT_EQ(TokensOf(GenerateAll(client(), Requests())), alone_);
}

TEST_F(TrainSlicesTest, AJobThatFailsOrIsCancelledLeavesServingAlone) {
  v1::JobSpec spec = Spec();
  spec.set_steps(1'000'000);
  spec.mutable_optimizer()->set_learning_rate(10);
  spec.mutable_optimizer()->set_weight_decay(9);  // weights become 89 times as large in each step
  spec.mutable_optimizer()->set_clip_norm(0);
  const auto diverges = training_.Submit(spec);
  ASSERT_TRUE(diverges.ok()) << diverges.status();
  const v1::Job failed = training_.WaitUntilIn(diverges->id(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(failed.state(), v1::JOB_STATE_FAILED) << failed.DebugString();
  EXPECT_EQ(TokensOf(GenerateAll(client(), Requests())), alone_);

  spec.mutable_optimizer()->set_learning_rate(1e-3);
  spec.mutable_optimizer()->clear_weight_decay();
  const auto endless = training_.Submit(spec);
  ASSERT_TRUE(endless.ok()) << endless.status();
  training_.WaitFor(endless->id(), [](const v1::Job& job) { return job.progress().step() >= 3; });
  ASSERT_TRUE(training_.Cancel(endless->id()).ok());
  EXPECT_EQ(training_.WaitUntilIn(endless->id(), v1::JOB_STATE_CANCELLED).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(TokensOf(GenerateAll(client(), Requests())), alone_);

  spec.set_workers(3);
  spec.set_batch_sequences(3);
  const absl::Status status = training_.Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 3 ranks, 2 alive, 2 configured to serve"));
}

}  // namespace
}  // namespace switchyard
