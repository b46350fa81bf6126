// The engine moves experts while requests run: workers report skewed counts, a plan is made on its own thread, and
// workers, metrics and GetExperts see its result, whatever that is.
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
    config.placement = {
        .mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = 4};
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
  // Runs requests until the view is as wanted, since the plan is made on another thread.
  bool RunUntil(const std::function<bool(const ResidencyView&)>& wanted) {
    const absl::Time limit = MonotonicNow() + kPatience;
    while (MonotonicNow() < limit) {
      Generate(absl::StrCat("r", runs++), 8);
      if (wanted(Experts()->placement)) return true;
    }
    return false;
  }
  static int64_t PlansOf(const ResidencyView& view, PlanOutcome outcome) {
    return view.plans[static_cast<size_t>(outcome)];
  }

  std::vector<std::shared_ptr<ScriptedWorker>> workers;
  int runs = 0;
  int connected = 0;
};

TEST_F(EnginePlacementTest, APlanIsCommittedWhileRequestsRun) {
  StartTwo();
  EXPECT_EQ(Experts()->placement.epoch, 0);
  ASSERT_TRUE(RunUntil([](const ResidencyView& view) { return PlansOf(view, PlanOutcome::kCommitted) >= 1; }));
  Generate("after", 8);
  const auto experts = Experts();
  EXPECT_GE(experts->placement.epoch, 1);
  EXPECT_EQ(experts->placement.layers[0]->DevicesOf(0).size(), 2u) << "the one that has all rows";
  EXPECT_EQ(workers[0]->placement_epoch(), experts->placement.epoch);
  EXPECT_EQ(workers[1]->placement_epoch(), experts->placement.epoch);
  AwaitTick(MonotonicNow());
  AwaitTick(MonotonicNow());
  EXPECT_GE(metrics->placement_plans(PlanOutcome::kCommitted).Value(), 1);
  EXPECT_GE(metrics->moved_experts->Value(), 1);
  EXPECT_GE(metrics->moved_expert_bytes->Value(), 1000);
  EXPECT_EQ(metrics->placement_epoch->Value(), static_cast<double>(experts->placement.epoch));
}

TEST_F(EnginePlacementTest, AGroupThatComesBackBeginsWithWhatWasCommitted) {
  StartTwo();
  EXPECT_TRUE(workers[0]->begins_with().residents.empty());
  EXPECT_GT(workers[0]->begins_with().costs.copy_ps, 0);
  ASSERT_TRUE(RunUntil([](const ResidencyView& view) { return PlansOf(view, PlanOutcome::kCommitted) >= 1; }));
  engine->links()->OnLinkLost(2, "gone");
  AwaitReady(false);
  const auto experts = Experts();
  const auto back = Connect(3, "secret", 1);
  AwaitReady(true);
  Generate("after", 8);
  for (const auto& worker : {workers[0], back}) {
    EXPECT_EQ(worker->begins_with().epoch, experts->placement.epoch);
    ASSERT_EQ(worker->begins_with().residents.size(), 1u);
    EXPECT_EQ(worker->begins_with().residents[0], *experts->placement.layers[0]);
    EXPECT_GE(worker->placement_epoch(), experts->placement.epoch);
  }
}

TEST_F(EnginePlacementTest, AWorkerThatCannotPrepareStopsThePlanAndNothingElse) {
  on_connect = [this](ScriptedWorker* worker) {
    worker->script.expert_counts = {400, 2, 2, 2};
    if (++connected == 2) worker->script.cannot_prepare = "no room for expert 0";
  };
  StartTwo();
  ASSERT_TRUE(RunUntil([](const ResidencyView& view) { return PlansOf(view, PlanOutcome::kAborted) >= 1; }));
  Generate("after", 8);
  const auto experts = Experts();
  EXPECT_EQ(experts->placement.epoch, 0);
  EXPECT_THAT(experts->placement.reason, HasSubstr("rank 1: no room for expert 0"));
  EXPECT_EQ(workers[1]->placement_epoch(), 0);
  EXPECT_GE(workers[0]->dropped(), 1);
  EXPECT_GE(workers[1]->dropped(), 1);
  EXPECT_EQ(engine->load().group_epoch, 1) << "the group serves on";
}

TEST_F(EnginePlacementTest, AWorkerLostWhilePreparing) {
  on_connect = [this](ScriptedWorker* worker) {
    worker->script.expert_counts = {400, 2, 2, 2};
    worker->script.prepares = ++connected != 2;
  };
  StartTwo();
  // A plan waits for the second worker; the first has answered.
  const auto held = [&] {
    Generate(absl::StrCat("r", runs++), 8);
    return workers[1]->asked() > 0;
  };
  for (const absl::Time limit = MonotonicNow() + kPatience; !held();) ASSERT_LT(MonotonicNow(), limit);
  engine->links()->OnLinkLost(2, "gone");
  AwaitReady(false);
  const auto experts = Experts();
  EXPECT_EQ(PlansOf(experts->placement, PlanOutcome::kAborted), 1);
  EXPECT_THAT(experts->placement.reason, HasSubstr("the group was lost: worker of rank 1 was lost"));
  // A late answer, for the group before.
  engine->links()->OnPlacementPrepared(1, 1, 1, "");
  engine->links()->OnPlacementPrepared(2, 1, 1, "");
  engine->links()->OnPlacementReleased(99, 1, 1);
  Connect(3, "secret", 1);
  AwaitReady(true);
  Generate("after", 1);
  EXPECT_EQ(Experts()->placement.epoch, 0);
  ASSERT_TRUE(RunUntil([](const ResidencyView& view) { return PlansOf(view, PlanOutcome::kCommitted) >= 1; }));
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
  ASSERT_TRUE(load.trial.has_value());
  EXPECT_EQ(load.trial->deciding_steps, workers[0]->decided);
  EXPECT_EQ(load.trial->steps, workers[0]->decided + workers[0]->undecided);
  EXPECT_GT(load.trial->gained_seconds, 0);
}

TEST_F(EnginePlacementTest, OtherModesDecideInEachStep) {
  StartTwo();
  Generate("a", 8);
  EXPECT_EQ(workers[0]->undecided, 0);
  AwaitTick(MonotonicNow());
  EXPECT_FALSE(engine->load().trial.has_value());
}

}  // namespace
}  // namespace switchyard::server
