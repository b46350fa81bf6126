// The background balancer's plans: made from counts, carried out migration by migration, kept for the next group.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/balancer/residency_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(BackgroundBalancerTest, EveryMigrationIsPreparedCommittedAndReleasedBeforeTheNext) {
  EXPECT_EQ(begun.epoch, 0);
  EXPECT_THAT(begun.residents, IsEmpty());
  EXPECT_EQ(begun.costs, kCosts);
  Steps(kPeriod - 1);
  EXPECT_THAT(log, IsEmpty());
  Step();
  EXPECT_THAT(log, ElementsAre("plan 1"));
  Planned(TwoMigrations());
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
  loop->StepDone(step - 1, load_stats, &meter, now);
  EXPECT_EQ(log.back(), "prepare 1") << "a step in flight may use what departs";
  loop->StepDone(step, load_stats, &meter, now);
  EXPECT_EQ(log.back(), "release 1");
  loop->Released(0, 1, now);
  EXPECT_EQ(log.back(), "release 1");
  loop->Released(1, 1, now);
  EXPECT_EQ(log.back(), "prepare 2");
  EXPECT_EQ(loop->view().migrations, 2);
  EXPECT_EQ(loop->view().migrations_in_use, 1);
  EXPECT_EQ(loop->view().plan, nullptr);
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 0);
  RunMigration();
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(loop->placement_epoch(), 2);
  EXPECT_EQ(LayerAt(1).ToString(), "[0 1 2 -] [- 3 - -]");
  EXPECT_EQ(loop->view().copies, 2);
  EXPECT_EQ(loop->view().last_bytes, 2000);
  EXPECT_EQ(loop->view().migrations, 0);
  EXPECT_EQ(CopyLayers(loop->view().layers), loop->view().plan->layers);
  // While the next plan is carried out, the view still shows the last one.
  Steps(kPeriod);
  placement::ResidencyPlan next;
  next.epoch = problem.next_epoch;
  next.layers = problem.present;
  next.migrations = {{.arrivals = {{1, 0, 1, 2}}, .departures = {}}};
  next.copies = 1;
  Planned(next);
  EXPECT_EQ(log.back(), "prepare 3");
  EXPECT_EQ(loop->view().last_copies, 2);
  EXPECT_EQ(loop->view().outcome, PlanOutcome::kCommitted);
}

TEST_F(BackgroundBalancerTest, TheNextGroupBeginsWithWhatIsCommitted) {
  StartPlan();
  RunMigration();
  RunMigration();
  loop->GroupDown("a test", now);
  const placement::GroupPlacement next =
      loop->Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, kCosts);
  EXPECT_EQ(next.epoch, 2);
  ASSERT_EQ(next.residents.size(), 2u);
  EXPECT_EQ(next.residents[0].ToString(), "[0 1 - -] [2 3 0 -]");
  EXPECT_EQ(next.residents[1].ToString(), "[0 1 2 -] [- 3 - -]");
  const placement::PlacementBounds bounds = {.layers = kLayers, .experts = kExperts, .devices = kRanks, .slots = 4};
  EXPECT_TRUE(placement::CheckGroupPlacement(next, bounds).ok()) << placement::CheckGroupPlacement(next, bounds);
}

// A group forms before costs are measured: the costs of its first steps are sent to all ranks as a migration without
// moves, which a step commits, and again when they have changed a lot.
TEST_F(BackgroundBalancerTest, MeasuredCostsReachRanksFromTheFirstSteps) {
  for (const int64_t rebalance_steps : {int64_t{0}, int64_t{1000}}) {
    SCOPED_TRACE(rebalance_steps);
    log.clear();
    Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .rebalance_steps = rebalance_steps});
    loop->GroupDown("a test", now);
    const BackgroundBalancer::Shape shape = {.layers = kLayers, .experts = kExperts, .devices = kRanks};
    const placement::MoveCosts unmeasured = {.copy_ps = 7, .row_ps = 8, .layer_ps = 0};
    EXPECT_EQ(loop->Begin(shape, unmeasured).costs, unmeasured);
    loop->GroupUp();
    Steps(4);
    ASSERT_THAT(log, ElementsAre("prepare 1"));
    EXPECT_EQ(prepared.costs, meter.Costs());
    EXPECT_GT(prepared.costs.layer_ps, 0);
    EXPECT_THAT(prepared.arrivals, IsEmpty());
    EXPECT_THAT(prepared.departures, IsEmpty());
    loop->Prepared(0, 1, "", now);
    EXPECT_EQ(loop->placement_epoch(), 0) << "not all ranks know it";
    loop->Prepared(1, 1, "", now);
    EXPECT_EQ(loop->placement_epoch(), 1) << "all take it up at the same step";
    Step();
    EXPECT_EQ(log.back(), "release 1");
    AllReleased();
    EXPECT_EQ(loop->placement_epoch(), 1);
    EXPECT_EQ(loop->view().epoch, 0) << "nothing has moved";
    EXPECT_EQ(Plans(PlanOutcome::kCommitted), 0);
    Steps(200);
    EXPECT_EQ(log.size(), 2u) << "they are what they were: " << log.back();
    meter.NoteCopies(0, PlacementCostMonitor::kMeasurableBytes, 1e3);
    Steps(64);
    EXPECT_EQ(log.back(), "prepare 2") << "copies turned out to be slow";
    // If the group is lost meanwhile, the next one begins with the costs measured by then.
    loop->GroupDown("a test", now);
    EXPECT_EQ(loop->Begin(shape, meter.Costs()).epoch, 0);
    EXPECT_EQ(loop->placement_epoch(), 0);
    loop->GroupUp();
    Steps(8);
    EXPECT_EQ(log.back(), "prepare 2");
    meter = PlacementCostMonitor(1000, 0);
  }
}

// The migration of costs is aborted like any other, and does not count as a plan.
TEST_F(BackgroundBalancerTest, CostsThatARankCannotTakeAreReportedAgain) {
  Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .rebalance_steps = 0});
  loop->GroupDown("a test", now);
  loop->Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, {.copy_ps = 7, .row_ps = 8, .layer_ps = 0});
  loop->GroupUp();
  Steps(4);
  loop->Prepared(0, 1, "no", now);
  EXPECT_EQ(log.back(), "drop 1");
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 0);
  EXPECT_EQ(loop->placement_epoch(), 0);
  Steps(64);
  EXPECT_EQ(log.back(), "prepare 2");
}

// Modes that do not use costs get none.
TEST_F(BackgroundBalancerTest, NoCostsForModesThatDoNotAskThem) {
  for (const placement::PlacementMode mode : {placement::PlacementMode::kStatic, placement::PlacementMode::kStaticSpare,
                                              placement::PlacementMode::kCentral}) {
    Make({.mode = mode, .spare_slots = mode == placement::PlacementMode::kStatic ? 0 : 1});
    loop->GroupDown("a test", now);
    loop->Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, {});
    loop->GroupUp();
    Steps(100);
    EXPECT_THAT(log, IsEmpty()) << NameOf(mode);
  }
}

TEST_F(BackgroundBalancerTest, AGroupOfAnotherModelThatNeverStoodLeavesNothing) {
  BackgroundBalancer first(
      {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = 1}, this);
  first.Begin({.layers = 7, .experts = 12, .devices = 3}, kCosts);
  first.Begin({.layers = kLayers, .experts = kExperts, .devices = kRanks}, kCosts);
  ASSERT_EQ(first.view().layers.size(), static_cast<size_t>(kLayers));
  EXPECT_EQ(first.view().layers.front()->num_experts, kExperts);
  EXPECT_EQ(first.view().layers.front()->num_devices(), kRanks);
}

// A prepared migration waits for the next step.
TEST_F(BackgroundBalancerTest, AReadyMigrationWaitsForAStep) {
  StartPlan();
  AllPrepared();
  now += 10 * BackgroundBalancer::kPatience;
  loop->Tick(now);
  EXPECT_EQ(log.back(), "prepare 1");
  Step();
  EXPECT_EQ(log.back(), "release 1");
}

TEST_F(BackgroundBalancerTest, NothingMovesWhereNothingIsToBeGained) {
  Steps(kPeriod);
  placement::ResidencyPlan plan;
  plan.epoch = problem.next_epoch;
  plan.layers = problem.present;
  Planned(plan);
  EXPECT_EQ(Plans(PlanOutcome::kNothingToDo), 1);
  EXPECT_NE(loop->view().plan, nullptr) << "it says why nothing moves";
  Steps(kPeriod);
  EXPECT_THAT(log, ElementsAre("plan 1", "plan 1"));
  loop->Planned(absl::InvalidArgumentError("residency: no profile"), now);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  EXPECT_EQ(loop->view().reason, "residency: no profile");
}

TEST_F(BackgroundBalancerTest, NoPlansWithoutAPeriodOrAnotherRank) {
  Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1});
  Steps(100);
  EXPECT_EQ(LayerAt(0), placement::ContiguousPlacement(kExperts, kRanks, 0));
  EXPECT_THAT(log, ElementsAre("prepare 1"));
  EXPECT_THAT(prepared.arrivals, IsEmpty()) << "costs alone";
  log.clear();
  Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .rebalance_steps = kPeriod}, /*devices=*/1);
  Steps(100);
  EXPECT_THAT(log, IsEmpty());
}

TEST_F(BackgroundBalancerTest, APlanIsMadeOfWhatWasCountedAndMeasured) {
  Steps(kPeriod);
  EXPECT_EQ(problem.layer_slots, 3);
  EXPECT_EQ(problem.present[1], placement::ContiguousPlacement(kExperts, kRanks, 2));
  ASSERT_EQ(problem.phases.size(), 1u) << "nothing was prefilled";
  EXPECT_EQ(problem.phases[0].steps, kPeriod);
  EXPECT_EQ(problem.phases[0].rows[1][0], 14 * kPeriod * popularity::kRow);
  EXPECT_DOUBLE_EQ(problem.costs.row_seconds, 1e-6);
  EXPECT_DOUBLE_EQ(problem.costs.move_seconds, 1000 / 10e9);
  EXPECT_EQ(problem.costs.expert_bytes, 1000);
  EXPECT_EQ(problem.costs.horizon_steps, 300);
}

// Real plans, from the counts: carried out, they give the planned placement, and the busiest rank gets fewer rows.
TEST_F(BackgroundBalancerTest, ARealPlanIsCarriedOut) {
  Steps(kPeriod);
  const absl::StatusOr<placement::ResidencyPlan> plan = placement::PlanResidency(problem);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->migrations.empty());
  Planned(*plan);
  for (size_t i = 0; i < plan->migrations.size(); ++i) RunMigration();
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(CopyLayers(loop->view().layers), plan->layers);
  EXPECT_EQ(loop->view().copies, plan->copies);
  EXPECT_EQ(loop->view().bytes, plan->bytes);
  EXPECT_TRUE(placement::CheckResidency(CopyLayers(loop->view().layers), problem.layer_slots).ok());
  EXPECT_LT(plan->layer_facts[0].after, plan->layer_facts[0].before);
}

}  // namespace
}  // namespace switchyard::server
