// The slow loop with a host that only writes down what it is told: every way that a plan can go.
#include "server/residency_loop.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kLayers = 2, kExperts = 4, kRanks = 2, kPeriod = 3;
constexpr MoveCosts kCosts = {.copy_ps = 7, .row_ps = 8, .layer_ps = 9};

class ResidencyLoopTest : public testing::Test, public ResidencyLoop::Host {
 protected:
  ResidencyLoopTest() {
    Make({.mode = PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = kPeriod});
  }

  void Make(const PlacementSettings& settings, int devices = kRanks) {
    loop = std::make_unique<ResidencyLoop>(settings, this);
    begun = loop->Begin({.layers = kLayers, .experts = kExperts, .devices = devices}, kCosts);
    loop->GroupUp();
  }

  // --- ResidencyLoop::Host ---
  void Plan(ResidencyProblem wanted) override {
    problem = std::move(wanted);
    log.push_back(absl::StrCat("plan ", problem.next_epoch));
  }
  void Prepare(const PlacementStage& stage) override {
    prepared = stage;
    log.push_back(absl::StrCat("prepare ", stage.epoch));
  }
  void Drop(int64_t epoch) override { log.push_back(absl::StrCat("drop ", epoch)); }
  void Release(int64_t epoch) override { log.push_back(absl::StrCat("release ", epoch)); }
  void BreakGroup(const std::string& why) override {
    log.push_back("break: " + why);
    loop->GroupDown(why, now);
  }

  // One step: planned, run, and counted.  Most rows are of expert 0.
  void Step() {
    loop->StepPlanned(++step, now);
    StepResult result;
    result.step = step;
    result.ranks.resize(kRanks);
    for (RankResult& rank : result.ranks) {
      rank.expert_rows = 20;
      rank.timings.expert_seconds = 20e-6;
      rank.timings.total_seconds = 100e-6;
    }
    ASSERT_TRUE(census.Add(Phase::kDecode, {14, 2, 2, 2, 14, 2, 2, 2}).ok());
    meter.Add(result, census);
    loop->StepDone(step, census, &meter, now);
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Two stages: a replica of (0, 0) on rank 1; then (1, 2) goes from rank 1 to rank 0.
  ResidencyPlan TwoStages() const {
    ResidencyPlan plan;
    plan.epoch = problem.next_epoch;
    plan.stages = {{.arrivals = {{MoveKind::kCopy, 0, 0, 1, 2}}, .departures = {}},
                   {.arrivals = {{MoveKind::kCopy, 1, 2, 0, 2}}, .departures = {{MoveKind::kRelease, 1, 2, 1, 0}}}};
    plan.layers = problem.present;
    for (const ResidencyStage& stage : plan.stages) {
      EXPECT_TRUE(ApplyStage(stage, problem.limits, &plan.layers).ok());
    }
    plan.copies = 2;
    plan.bytes = 2000;
    return plan;
  }
  // Until a plan of two stages is there and the first is being prepared.
  void StartPlan() {
    Steps(kPeriod);
    loop->Planned(TwoStages(), now);
  }
  void AllPrepared() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Prepared(rank, epoch, "", now);
  }
  void AllReleased() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Released(rank, epoch, now);
  }
  // Prepared, committed, run, released.
  void RunStage() {
    AllPrepared();
    Step();
    AllReleased();
  }
  int64_t Plans(PlanOutcome outcome) const { return loop->view().plans[static_cast<size_t>(outcome)]; }
  const Placement& LayerAt(int layer) const { return (*loop->view().layers)[layer].placement; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  ExpertCensus census{{.num_layers = kLayers, .num_experts = kExperts, .top_k = 2}, 100000};
  PlacementMeter meter{1000, 0};
  std::unique_ptr<ResidencyLoop> loop;
  GroupPlacement begun;
  ResidencyProblem problem;
  PlacementStage prepared;
  std::vector<std::string> log;
  int64_t step = 0;
};

TEST_F(ResidencyLoopTest, EveryStageIsPreparedCommittedAndReleasedBeforeTheNext) {
  EXPECT_EQ(begun.epoch, 0);
  EXPECT_THAT(begun.residents, IsEmpty());
  EXPECT_EQ(begun.costs, kCosts);
  Steps(kPeriod - 1);
  EXPECT_THAT(log, IsEmpty());
  Step();
  EXPECT_THAT(log, ElementsAre("plan 1"));
  loop->Planned(TwoStages(), now);
  EXPECT_THAT(log, ElementsAre("plan 1", "prepare 1"));
  EXPECT_EQ(prepared.arrivals.size(), 1u);
  EXPECT_EQ(prepared.costs, meter.Costs()) << "what was measured, not what was taken at the start";
  Step();
  EXPECT_EQ(loop->placement_epoch(), 0) << "steps run by the placement before";
  loop->Prepared(1, 1, "", now);
  Step();
  EXPECT_EQ(loop->placement_epoch(), 0);
  loop->Prepared(0, 1, "", now);
  EXPECT_EQ(loop->placement_epoch(), 1);
  EXPECT_EQ(loop->view().epoch, 0) << "no step was planned by it";
  loop->StepPlanned(++step, now);
  EXPECT_EQ(loop->view().epoch, 1);
  EXPECT_TRUE(LayerAt(0).Holds(1, 0));
  loop->StepDone(step - 1, census, &meter, now);
  EXPECT_EQ(log.back(), "prepare 1") << "a step in flight may use what departs";
  loop->StepDone(step, census, &meter, now);
  EXPECT_EQ(log.back(), "release 1");
  loop->Released(0, 1, now);
  EXPECT_EQ(log.back(), "release 1");
  loop->Released(1, 1, now);
  EXPECT_EQ(log.back(), "prepare 2");
  EXPECT_EQ(loop->view().stages, 2);
  EXPECT_EQ(loop->view().stages_in_use, 1);
  EXPECT_EQ(loop->view().plan, nullptr);
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 0);
  RunStage();
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(loop->placement_epoch(), 2);
  EXPECT_EQ(LayerAt(1).ToString(), "[0 1 2 -] [- 3 - -]");
  EXPECT_EQ(loop->view().copies, 2);
  EXPECT_EQ(loop->view().last_bytes, 2000);
  EXPECT_EQ(loop->view().stages, 0);
  EXPECT_EQ(*loop->view().layers, loop->view().plan->layers);
  // While the next one is carried out the last is still the last.
  Steps(kPeriod);
  ResidencyPlan next;
  next.epoch = problem.next_epoch;
  next.layers = problem.present;
  next.stages = {{.arrivals = {{MoveKind::kCopy, 1, 0, 1, 2}}, .departures = {}}};
  next.copies = 1;
  loop->Planned(next, now);
  EXPECT_EQ(log.back(), "prepare 3");
  EXPECT_EQ(loop->view().last_copies, 2);
  EXPECT_EQ(loop->view().outcome, PlanOutcome::kCommitted);
}

TEST_F(ResidencyLoopTest, TheNextGroupBeginsWithWhatIsCommitted) {
  StartPlan();
  RunStage();
  RunStage();
  loop->GroupDown("a test", now);
  const GroupPlacement next = loop->Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, kCosts);
  EXPECT_EQ(next.epoch, 2);
  ASSERT_EQ(next.residents.size(), 2u);
  EXPECT_EQ(next.residents[0].ToString(), "[0 1 - -] [2 3 0 -]");
  EXPECT_EQ(next.residents[1].ToString(), "[0 1 2 -] [- 3 - -]");
  const PlacementBounds bounds = {.layers = kLayers, .experts = kExperts, .devices = kRanks, .slots = 4};
  EXPECT_TRUE(CheckGroupPlacement(next, bounds).ok()) << CheckGroupPlacement(next, bounds);
}

TEST_F(ResidencyLoopTest, AGroupOfAnotherModelThatNeverStoodLeavesNothing) {
  ResidencyLoop first({.mode = PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = 1},
                      this);
  first.Begin({.layers = 7, .experts = 12, .devices = 3}, kCosts);
  first.Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, kCosts);
  ASSERT_EQ(first.view().layers->size(), static_cast<size_t>(kLayers));
  EXPECT_EQ(first.view().layers->front().placement.num_experts, kExperts);
  EXPECT_EQ(first.view().layers->front().placement.num_devices(), kRanks);
}

TEST_F(ResidencyLoopTest, AStageThatFailsIsDroppedEverywhere) {
  StartPlan();
  loop->Prepared(0, 1, "", now);
  loop->Prepared(1, 1, "the checksum of expert 0 of MoE layer 0 is wrong", now);
  EXPECT_EQ(log.back(), "drop 1");
  EXPECT_EQ(loop->placement_epoch(), 0);
  EXPECT_EQ(loop->view().epoch, 0);
  EXPECT_EQ(loop->view().copies, 0);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  EXPECT_EQ(loop->view().reason, "after 0 of 2 stages: rank 1: the checksum of expert 0 of MoE layer 0 is wrong");
  EXPECT_EQ(LayerAt(0), ContiguousPlacement(kExperts, kRanks, 2));
  // The next plan has epochs that were never used.
  Steps(kPeriod);
  EXPECT_EQ(log.back(), "plan 3");
}

TEST_F(ResidencyLoopTest, WhatIsCommittedStaysWhenALaterStageFails) {
  StartPlan();
  RunStage();
  loop->Prepared(0, 2, "no memory", now);
  EXPECT_EQ(log.back(), "drop 2");
  EXPECT_EQ(loop->view().reason, "after 1 of 2 stages: rank 0: no memory");
  EXPECT_EQ(loop->placement_epoch(), 1);
  EXPECT_TRUE(LayerAt(0).Holds(1, 0));
  EXPECT_FALSE(LayerAt(1).Holds(0, 2));
  EXPECT_EQ(loop->view().plan, nullptr) << "it says nothing of what is there now";
  EXPECT_EQ(loop->view().last_copies, 1);
  EXPECT_EQ(loop->view().last_bytes, 1000);
}

TEST_F(ResidencyLoopTest, CopiesThatDoNotEndInTimeAreDropped) {
  StartPlan();
  loop->Prepared(1, 1, "", now);
  now += ResidencyLoop::kPatience - absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "prepare 1");
  now += absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "drop 1");
  EXPECT_THAT(loop->view().reason, HasSubstr("not ready in time: rank 0"));
}

// A stage that is ready waits for traffic as long as there is none.
TEST_F(ResidencyLoopTest, AReadyStageWaitsForAStep) {
  StartPlan();
  AllPrepared();
  now += 10 * ResidencyLoop::kPatience;
  loop->Tick(now);
  EXPECT_EQ(log.back(), "prepare 1");
  Step();
  EXPECT_EQ(log.back(), "release 1");
}

TEST_F(ResidencyLoopTest, ARankThatDoesNotReleaseEndsTheGroup) {
  StartPlan();
  AllPrepared();
  Step();
  loop->Released(0, 1, now);
  now += ResidencyLoop::kPatience - absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "release 1");
  now += absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "break: not all ranks released placement 1 within 1m");
  loop->Tick(now + absl::Hours(1));
  EXPECT_EQ(loop->view().epoch, 1);
  EXPECT_EQ(loop->view().reason,
            "after 1 of 2 stages: the group was lost: not all ranks released placement 1 within 1m");
}

// A group that is lost ends the plan, whatever it was at; nobody is told to drop what went with the group.
TEST_F(ResidencyLoopTest, AGroupIsLostInEveryState) {
  struct Case {
    const char* name;
    std::function<void()> before;
    int64_t epoch;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"preparing", [] {}, 0, "after 0 of 2 stages: the group was lost: gone"},
      {"one rank prepared", [&] { loop->Prepared(0, prepared.epoch, "", now); }, 0, "after 0 of 2"},
      {"ready", [&] { AllPrepared(); }, 0, "after 0 of 2"},
      {"committed",
       [&] {
         AllPrepared();
         loop->StepPlanned(++step, now);
       },
       1, "after 1 of 2"},
      {"releasing",
       [&] {
         AllPrepared();
         Step();
       },
       1, "after 1 of 2"},
      {"second preparing", [&] { RunStage(); }, 1, "after 1 of 2"},
      {"second ready",
       [&] {
         RunStage();
         AllPrepared();
       },
       1, "after 1 of 2"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    log.clear();
    step = 0;
    Make({.mode = PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = kPeriod});
    StartPlan();
    c.before();
    log.clear();
    loop->GroupDown("gone", now);
    EXPECT_THAT(log, IsEmpty());
    EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
    EXPECT_EQ(loop->view().epoch, c.epoch);
    EXPECT_EQ(loop->placement_epoch(), c.epoch);
    EXPECT_THAT(loop->view().reason, HasSubstr(c.reason));
    // Answers that were on their way.
    AllPrepared();
    AllReleased();
    EXPECT_EQ(loop->placement_epoch(), c.epoch);
    // The next group plans anew, by its own steps.
    loop->GroupUp();
    step = 0;
    Steps(kPeriod - 1);
    EXPECT_THAT(log, IsEmpty());
    Step();
    EXPECT_THAT(log, ElementsAre("plan 3"));
    loop->Planned(absl::InvalidArgumentError("enough"), now);
  }
}

// The last stage's moves are in force from the commit on: the plan was carried out.
TEST_F(ResidencyLoopTest, AGroupLostAfterTheLastCommitHasItsPlan) {
  StartPlan();
  RunStage();
  AllPrepared();
  loop->StepPlanned(++step, now);
  loop->GroupDown("gone", now);
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 0);
  EXPECT_EQ(loop->view().epoch, 2);
}

TEST_F(ResidencyLoopTest, AGroupLostWhilePlanningDropsThePlan) {
  Steps(kPeriod);
  loop->GroupDown("gone", now);
  EXPECT_EQ(loop->view().reason, "the group was lost: gone");
  loop->GroupUp();
  step = 0;
  Steps(2 * kPeriod);
  EXPECT_THAT(log, ElementsAre("plan 1")) << "one plan at a time";
  loop->Planned(TwoStages(), now);
  EXPECT_THAT(log, ElementsAre("plan 1"));
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  Step();
  EXPECT_THAT(log, ElementsAre("plan 1", "plan 1")) << "its epochs were not used";
}

TEST_F(ResidencyLoopTest, LateAnswersOfAnotherEpochChangeNothing) {
  StartPlan();
  loop->Prepared(0, 1, "full", now);
  Steps(kPeriod);
  loop->Planned(TwoStages(), now);  // epochs 3 and 4
  ASSERT_EQ(prepared.epoch, 3);
  loop->Prepared(0, 3, "", now);
  for (const int64_t epoch : {1, 2, 4, -3}) {
    loop->Prepared(1, epoch, "", now);
    loop->Prepared(1, epoch, "bad", now);
    loop->Released(0, epoch, now);
    loop->Released(1, epoch, now);
  }
  loop->Released(0, 3, now);  // nobody asked for it yet
  loop->Released(1, 3, now);
  EXPECT_EQ(log.back(), "prepare 3");
  EXPECT_EQ(loop->placement_epoch(), 0);
  loop->Prepared(1, 3, "", now);
  loop->Prepared(1, 3, "", now);  // twice
  EXPECT_EQ(loop->placement_epoch(), 3);
  Step();
  loop->Prepared(0, 3, "too late", now);
  EXPECT_EQ(log.back(), "release 3");
}

TEST_F(ResidencyLoopTest, NothingMovesWhereNothingIsToBeGained) {
  Steps(kPeriod);
  ResidencyPlan plan;
  plan.epoch = problem.next_epoch;
  plan.layers = problem.present;
  loop->Planned(plan, now);
  EXPECT_EQ(Plans(PlanOutcome::kNothingToDo), 1);
  EXPECT_NE(loop->view().plan, nullptr) << "it says why nothing moves";
  Steps(kPeriod);
  EXPECT_THAT(log, ElementsAre("plan 1", "plan 1"));
  loop->Planned(absl::InvalidArgumentError("residency: no profile"), now);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  EXPECT_EQ(loop->view().reason, "residency: no profile");
}

TEST_F(ResidencyLoopTest, NoPlansWithoutAPeriodOrAnotherRank) {
  Make({.mode = PlacementMode::kAgreed, .spare_slots = 1});
  Steps(100);
  EXPECT_EQ(LayerAt(0), ContiguousPlacement(kExperts, kRanks, 0));
  Make({.mode = PlacementMode::kAgreed, .spare_slots = 1, .rebalance_steps = kPeriod}, /*devices=*/1);
  Steps(100);
  EXPECT_THAT(log, IsEmpty());
}

TEST_F(ResidencyLoopTest, APlanIsMadeOfWhatWasCountedAndMeasured) {
  Steps(kPeriod);
  EXPECT_EQ(problem.limits.layer_slots, 3);
  EXPECT_EQ(problem.limits.device_slots, 6);
  EXPECT_EQ(problem.present[1].placement, ContiguousPlacement(kExperts, kRanks, 2));
  ASSERT_EQ(problem.phases.size(), 1u) << "nothing was prefilled";
  EXPECT_EQ(problem.phases[0].steps, kPeriod);
  EXPECT_EQ(problem.phases[0].rows[1][0], 14 * kPeriod * kRow);
  EXPECT_DOUBLE_EQ(problem.costs.row_seconds, 1e-6);
  EXPECT_DOUBLE_EQ(problem.costs.move_seconds, 1000 / 10e9);
  EXPECT_EQ(problem.costs.expert_bytes, 1000);
  EXPECT_EQ(problem.costs.horizon_steps, 300);
}

// Real plans, from the counts: carried out they leave what they promised, and the busiest rank has less to do.
TEST_F(ResidencyLoopTest, ARealPlanIsCarriedOut) {
  Steps(kPeriod);
  const absl::StatusOr<ResidencyPlan> plan = PlanResidency(problem);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->stages.empty());
  loop->Planned(*plan, now);
  for (size_t i = 0; i < plan->stages.size(); ++i) RunStage();
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(*loop->view().layers, plan->layers);
  EXPECT_EQ(loop->view().copies, plan->copies);
  EXPECT_EQ(loop->view().bytes, plan->bytes);
  EXPECT_TRUE(CheckResidency(*loop->view().layers, problem.limits).ok());
  EXPECT_LT(plan->layer_facts[0].after, plan->layer_facts[0].before);
}

}  // namespace
}  // namespace switchyard
