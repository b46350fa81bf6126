// A worker that serves and trains on one link: training runs in slices alone, and neither half is the other's end.
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/becomes.h"
#include "tests/workers/session/training_link_fixture.h"
#include "workers/serving/worker.h"
#include "workers/session/both_role.h"

namespace switchyard::worker {
namespace {

class BothLinkTest : public TrainingLinkTest {
 protected:
  void SetUp() override {
    WorkerOptions options;
    options.model_dir = root_.path() + "/checkpoints/model";
    auto opened = Worker::Open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    worker_ = *std::move(opened);
    StartWorkers(1, [this](WorkerMetrics* metrics) {
      metrics_ = metrics;
      auto role = std::make_unique<BothRole>(worker_.get(), Options(), metrics);
      gate_ = &role->gate();
      return role;
    });
    SendSettings();
  }
  void TearDown() override { workers_.clear(); }  // before the worker

  void SendSettings(int32_t yield_ms = 50) {
    v1::LinkResponse registered;
    v1::EngineOptions* const engine = registered.mutable_registered()->mutable_options();
    registered.mutable_registered()->set_heartbeat_ms(250);
    engine->set_block_size(16);
    engine->set_kv_cache_bytes(1 << 20);
    engine->set_max_num_seqs(4);
    engine->set_max_batched_tokens(64);
    engine->set_max_model_len(128);
    engine->set_train_yield_ms(yield_ms);
    server_->Send(0, registered);
  }

  void Join(int64_t epoch) {
    v1::LinkResponse message;
    message.mutable_join_group()->set_epoch(epoch);
    message.mutable_join_group()->set_world(1);
    message.mutable_join_group()->set_store_token("serving");
    message.mutable_join_group()->set_deadline_ms(20'000);
    server_->Send(0, message);
    server_->Await(0, &seen_[0], [epoch](const v1::LinkRequest& said) {
      return said.has_group_ready() && said.group_ready().epoch() == epoch;
    });
  }
  void Abort(int64_t epoch, bool training) {
    v1::LinkResponse message;
    message.mutable_abort_group()->set_epoch(epoch);
    message.mutable_abort_group()->set_reason("a test wants it");
    message.mutable_abort_group()->set_training(training);
    server_->Send(0, message);
  }
  void Slice(int64_t epoch, absl::Duration time) {
    v1::LinkResponse message;
    message.mutable_step_plan()->set_group_epoch(epoch);
    message.mutable_step_plan()->set_train_slice_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(time)));
    server_->Send(0, message);
  }
  // Greedy, of a prompt of five tokens, from step `first` on.
  std::vector<int32_t> Tokens(int64_t epoch, int64_t first, int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      v1::LinkResponse message;
      v1::StepPlan* const plan = message.mutable_step_plan();
      plan->set_step(first + i);
      plan->set_group_epoch(epoch);
      plan->set_micro_batches(1);
      plan->set_timeout_ms(20'000);
      v1::StepItem* const item = plan->add_items();
      item->set_start_pos(i == 0 ? 0 : 4 + i);
      item->set_num_query(i == 0 ? 5 : 1);
      item->set_sample(true);
      if (i == 0) {
        for (int token = 0; token < 5; ++token) item->mutable_init()->add_tokens(3 + 11 * token);
        item->mutable_init()->set_num_prompt_tokens(5);
        item->mutable_init()->mutable_sampling()->set_top_p(1);
        item->mutable_init()->mutable_sampling()->set_repetition_penalty(1);
        item->mutable_init()->mutable_sampling()->set_num_logprobs(-1);
        item->mutable_init()->mutable_sampling()->set_num_prompt_logprobs(-1);
        item->add_new_blocks(0);
        item->add_new_blocks(1);
      }
      server_->Send(0, message);
      const v1::LinkRequest said = server_->Await(
          0, &seen_[0], [&](const v1::LinkRequest& each) { return each.has_step_result() || each.has_group_fault(); });
      if (!said.has_step_result() || said.step_result().items_size() != 1) {
        ADD_FAILURE() << said.ShortDebugString();
        return tokens;
      }
      tokens.push_back(said.step_result().items(0).tokens(0));
    }
    return tokens;
  }
  v1::StartTraining Endless(int64_t epoch) {
    v1::StartTraining start = StartMessage(epoch, epoch, 1);
    start.mutable_spec()->set_steps(1'000'000);
    start.set_store_token(absl::StrCat("job ", epoch));
    return start;
  }
  uint64_t NumYields() { return metrics_->train_yield_seconds->Collect().histogram.sample_count; }
  int StepsSeen() {
    int steps = 0;
    for (const v1::LinkRequest& message : server_->Messages(0)) steps += message.has_training_step() ? 1 : 0;
    return steps;
  }

  // Threads of this process that have made way (MakeWay).
  static int NumLowThreads() {
    int low = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      const int id = std::stoi(thread.path().filename());
      low += getpriority(PRIO_PROCESS, static_cast<id_t>(id)) > 0 ? 1 : 0;
    }
    return low;
  }

  // Training has come to a shut gate, and nothing of it computes.
  void AwaitShut() {
    gate_->AwaitStanding(1);
    gate_->AwaitStill();
  }

  std::unique_ptr<Worker> worker_;
  WorkerMetrics* metrics_ = nullptr;
  const YieldPoint* gate_ = nullptr;
};

constexpr absl::Duration kLong = absl::Seconds(50);
constexpr int64_t kJob = 1'000'000;  // an epoch of training

TEST_F(BothLinkTest, TrainsInSlicesAlone) {
  EXPECT_EQ(server_->Messages(0).at(0).register_().role(), "both");
  EXPECT_FALSE(server_->Messages(0).at(0).register_().weights_hash().empty());
  Join(1);
  const std::vector<int32_t> alone = Tokens(1, 1, 8);
  ASSERT_EQ(alone.size(), 8u);
  v1::StartTraining start = Endless(kJob);
  start.mutable_spec()->mutable_checkpoints()->set_every_steps(1'000'000);  // it never waits for a disk
  const int low = NumLowThreads();
  Start(start);
  AwaitShut();
  EXPECT_EQ(StepsSeen(), 0);
  EXPECT_GT(NumLowThreads(), low) << "the attempt's own, and those that it starts";
  Slice(1, kLong);
  AwaitStep(3);
  // A plan ends the slice, the answers are as before, and nothing goes on by itself.
  EXPECT_EQ(Tokens(1, 9, 8), alone);
  AwaitShut();
  EXPECT_LE(NumYields(), 1u) << "none if no task ran when the plan came";
  const int before = StepsSeen();
  const absl::Duration opened = gate_->opened();
  Slice(2, kLong);  // of another group
  EXPECT_EQ(Tokens(1, 17, 8), alone);
  EXPECT_EQ(gate_->opened(), opened);
  EXPECT_LE(StepsSeen(), before + 1) << "one may have been on its way";
  Slice(1, kLong);
  AwaitStep(before + 5);
  Stop(0, kJob, v1::STOP_KIND_SAVE);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  EXPECT_GT(metrics_->train_slice_seconds->Value(), 0);
}

TEST_F(BothLinkTest, ProgressNamesItsEpochAndPhase) {
  Join(3);
  int reports = 0;
  for (const v1::LinkRequest& message : server_->Messages(0)) {
    if (!message.has_load_progress()) continue;
    ++reports;
    EXPECT_EQ(message.load_progress().epoch(), 3);
    EXPECT_EQ(message.load_progress().phase(), "weights");
    EXPECT_GT(message.load_progress().total(), 0);
  }
  EXPECT_GE(reports, 1);
}

// The memory that training may take is known once serving has its own.
TEST_F(BothLinkTest, AJobBeginsWhenServingHasWhatItNeeds) {
  Start(Endless(kJob));
  AwaitShut();
  for (const v1::LinkRequest& message : server_->Messages(0)) {
    EXPECT_FALSE(message.has_training_note()) << message.ShortDebugString();
  }
  Join(1);
  Slice(1, kLong);
  EXPECT_GE(AwaitStarted(0).step(), 0);
  Stop(0, kJob, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

// How finely work is cut follows from what the server says.
TEST_F(BothLinkTest, TheServerSaysWithinWhichTime) {
  EXPECT_EQ(gate_->limit(), absl::Milliseconds(50));
  SendSettings(20);
  Join(1);  // commands are taken in order
  EXPECT_EQ(gate_->limit(), absl::Milliseconds(20));
}

TEST_F(BothLinkTest, TheEndOfOneIsNotTheOthers) {
  Join(1);
  const std::vector<int32_t> alone = Tokens(1, 1, 8);
  Start(Endless(kJob));
  Slice(1, kLong);
  AwaitStep(3);
  // The serving group breaks and forms anew.
  Abort(1, /*training=*/false);
  Join(2);
  EXPECT_EQ(Tokens(2, 1, 8), alone);
  const int before = StepsSeen();
  Slice(2, kLong);
  AwaitStep(before + 3);
  // The attempt is given up; while it serves: what waits before the gate has to end.
  EXPECT_EQ(Tokens(2, 9, 2).size(), 2u);
  Abort(kJob, /*training=*/true);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_LOST);
  EXPECT_EQ(Tokens(2, 11, 8), alone);
  // One that fails by itself.
  v1::StartTraining start = Endless(kJob + 1);
  start.mutable_spec()->set_sequence_length(100'000);
  Start(start);
  Slice(2, kLong);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_FAILED);
  EXPECT_EQ(Tokens(2, 19, 8), alone);
  // And the next trains.
  Start(Endless(kJob + 2));
  Slice(2, kLong);
  EXPECT_GE(AwaitStarted(0).step(), 0);
  Stop(0, kJob + 2, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

TEST_F(BothLinkTest, ALinkThatBreaksEndsBothAndBothComeBack) {
  const int low = NumLowThreads();
  Join(1);
  const std::vector<int32_t> alone = Tokens(1, 1, 8);
  Start(Endless(kJob));
  Slice(1, kLong);
  AwaitStep(9);
  Tokens(1, 9, 1);  // the gate is shut when the link breaks
  const int port = server_->port();
  server_.reset();
  server_ = std::make_unique<LinkServer>(port);
  seen_ = {0};
  EXPECT_EQ(AwaitRegistration(0).role(), "both");
  SendSettings();
  Join(1);
  EXPECT_EQ(Tokens(1, 1, 8), alone);
  // A slice that comes while the attempt before still ends is none of the next one's, and here is but one.
  EXPECT_TRUE(Becomes([low] { return NumLowThreads() <= low; }));
  Start(Endless(kJob + 1));
  Slice(1, kLong);
  EXPECT_GE(AwaitStarted(0).step(), 2);
  Stop(0, kJob + 1, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

}  // namespace
}  // namespace switchyard::worker
