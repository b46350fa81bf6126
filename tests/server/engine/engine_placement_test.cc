// The engine and where experts' rows go: reports and profiles of workers, costs in plans, trials of --placement=auto.
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EnginePlacementTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    config.workers = 2;
    config.placement = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1};
    model_facts.num_moe_layers = 1;
    model_facts.num_experts = 4;
    model_facts.experts_per_token = 1;
    model_facts.expert_bytes = 1000;
    on_connect = [](ScriptedWorker* worker) { worker->script.expert_counts = {400, 2, 2, 2}; };
  }
  void StartTwo() {
    Start();
    workers = {Connect(1, "secret", 0), Connect(2, "secret", 1)};
    AwaitReady(true);
  }
  void Generate(const std::string& id, int32_t tokens) {
    Reader reader;
    Submit(reader, id, tokens);
    EXPECT_TRUE(reader.End().ok());
  }
  // Copies experts' load and placement on the engine's thread.
  std::unique_ptr<const ExpertsCopy> Experts() {
    std::unique_ptr<const ExpertsCopy> copy;
    absl::Notification done;
    engine->CopyExperts([&](std::unique_ptr<const ExpertsCopy> experts) {
      copy = std::move(experts);
      done.Notify();
    });
    EXPECT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
    return copy;
  }

  std::vector<std::shared_ptr<ScriptedWorker>> workers;
};

// Plans say what decisions weigh copies by: at first by the kind of machine, then as measured.
TEST_F(EnginePlacementTest, PlansHaveTheCostsThatWereMeasured) {
  on_connect = [](ScriptedWorker* worker) {
    worker->script.expert_counts = {400, 2, 2, 2};
    worker->script.step_seconds = 0.01;
  };
  StartTwo();
  Generate("a", 1);
  EXPECT_GT(workers[0]->layer_costs().copy_ps, 0);
  EXPECT_NE(workers[0]->layer_costs().row_ps, 1'000'000) << "nothing is measured yet";
  Generate("b", 8);
  EXPECT_EQ(workers[0]->layer_costs().row_ps, 1'000'000) << "1 us a row, as the workers say";
  EXPECT_EQ(workers[0]->layer_costs(), workers[1]->layer_costs());
}

// Reports are kept by rank of the current group; reports that do not fit it, or are of another group, are ignored.
TEST_F(EnginePlacementTest, WhatWorkersReportIsSeenUntilTheirGroupIsOver) {
  StartTwo();
  const int64_t epoch = engine->load().group_epoch;
  const auto report = [](int layers, int devices) {
    auto out = std::make_shared<placement::ExpertReport>();
    out->placements.assign(static_cast<size_t>(layers), placement::ContiguousPlacement(4, devices, 0));
    out->origins.assign(static_cast<size_t>(layers),
                        std::vector<placement::SlotOrigin>(4, placement::SlotOrigin::kStart));
    return out;
  };
  const auto reported = [this] {
    std::vector<std::shared_ptr<const placement::ExpertReport>> reports;
    const auto experts = Experts();
    for (const ReceivedReport& one : experts->reports) reports.push_back(one.report);
    return reports;
  };
  EXPECT_THAT(reported(), ElementsAre(nullptr, nullptr));
  engine->links()->OnExpertReport(1, epoch + 1, report(1, 2));
  engine->links()->OnExpertReport(99, epoch, report(1, 2));
  engine->links()->OnExpertReport(1, epoch, report(2, 2));
  engine->links()->OnExpertReport(1, epoch, report(1, 1));
  EXPECT_THAT(reported(), ElementsAre(nullptr, nullptr));
  const auto first = report(1, 2), second = std::make_shared<placement::ExpertReport>();
  engine->links()->OnExpertReport(1, epoch, first);
  engine->links()->OnExpertReport(2, epoch, second);
  EXPECT_THAT(reported(), ElementsAre(first, second));
  engine->links()->OnLinkLost(2, "gone");
  AwaitReady(false);
  EXPECT_TRUE(reported().empty());
  Connect(3, "secret", 1);
  AwaitReady(true);
  EXPECT_THAT(reported(), ElementsAre(nullptr, nullptr));
}

// The answer of a call of CollectProfile.
class Collected {
 public:
  ProfileCollector::Call Call() {
    return {.on_progress = nullptr, .done = [this](absl::StatusOr<std::vector<std::string>> profiles) {
              profiles_ = std::move(profiles);
              done_.Notify();
            }};
  }
  const absl::StatusOr<std::vector<std::string>>& Await() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(kPatience));
    return profiles_;
  }
  std::string Reason() { return rpc::ViewError(rpc::ToGrpcStatus(Await().status(), "")).reason; }

 private:
  absl::Notification done_;
  absl::StatusOr<std::vector<std::string>> profiles_ = absl::UnknownError("not done");
};

TEST_F(EnginePlacementTest, WorkersAreAskedWhatTheyLearned) {
  on_connect = [](ScriptedWorker* worker) { worker->script.profile = "abcdefghi"; };
  StartTwo();
  Collected both;
  engine->CollectProfile(both.Call());
  ASSERT_TRUE(both.Await().ok()) << both.Await().status();
  EXPECT_THAT(*both.Await(), ElementsAre("abcdefghi", "abcdefghi"));
  EXPECT_EQ(workers[0]->profile_asked(), 3);
}

TEST_F(EnginePlacementTest, OneAtATimeAndNoLongerThanTheGroup) {
  StartTwo();
  Collected first, second, third;
  engine->CollectProfile(first.Call());
  engine->CollectProfile(second.Call());
  EXPECT_EQ(second.Reason(), "QUEUE_FULL");
  engine->links()->OnLinkLost(2, "gone");
  EXPECT_EQ(first.Reason(), "WORKER_LOST");
  AwaitReady(false);
  engine->CollectProfile(third.Call());
  EXPECT_EQ(third.Reason(), "WORKER_LOST");
  // A new group answers.
  on_connect = [](ScriptedWorker* worker) { worker->script.profile = "new"; };
  workers[0]->script.profile = "old";
  Connect(3, "secret", 1);
  AwaitReady(true);
  Collected fourth;
  engine->CollectProfile(fourth.Call());
  ASSERT_TRUE(fourth.Await().ok()) << fourth.Await().status();
  EXPECT_THAT(*fourth.Await(), ElementsAre("old", "new"));
  engine->Stop();
  Collected late;
  engine->CollectProfile(late.Call());
  EXPECT_EQ(late.Reason(), "DRAINING");
}

// Both ways take turns; then steps go the way that is faster.
TEST_F(EnginePlacementTest, AutoTriesWhetherDecidingIsFaster) {
  config.placement = {.mode = placement::PlacementMode::kAuto, .spare_slots = 1};
  config.batching.max_in_flight = 1;  // the fake worker runs a step when it is sent
  on_connect = [](ScriptedWorker* worker) {
    worker->script.expert_counts = {400, 2, 2, 2};
    worker->script.undecided_ms = 20;
  };
  StartTwo();
  Generate("a", 41);  // a prompt's step and 40 others
  EXPECT_GE(workers[0]->decided, 5 + 25);
  EXPECT_GE(workers[0]->undecided, 1 + 5);
  EXPECT_EQ(workers[0]->decided, workers[1]->decided) << "all ranks have one plan";
  AwaitTick(MonotonicNow());
  AwaitTick(MonotonicNow());
  EXPECT_EQ(workers[0]->decided, metrics->deciding_steps->Value());
  EXPECT_GT(metrics->placement_gained_seconds->Value(), 0);
  const LoadSnapshot load = engine->load();
  ASSERT_TRUE(load.placement.has_value());
  EXPECT_EQ(load.placement->other_steps, workers[0]->decided);
  EXPECT_EQ(load.placement->steps, workers[0]->decided + workers[0]->undecided);
  EXPECT_GT(load.placement->gained_seconds, 0);
}

TEST_F(EnginePlacementTest, OtherModesDecideInEachStep) {
  StartTwo();
  Generate("a", 8);
  EXPECT_EQ(workers[0]->undecided, 0);
  AwaitTick(MonotonicNow());
  EXPECT_FALSE(engine->load().placement.has_value());
}

}  // namespace
}  // namespace switchyard::server
