// What placement weighs moves by, from steps.
#include "server/placement_meter.h"

#include <limits>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/planner_thread.h"

namespace switchyard {
namespace {

StepResult Step(double expert_seconds, int64_t expert_rows, double total_seconds) {
  StepResult result;
  result.ranks.resize(2);
  result.ranks[0].timings = {.total_seconds = total_seconds, .expert_seconds = expert_seconds};
  result.ranks[0].expert_rows = expert_rows;
  result.ranks[1].timings.total_seconds = total_seconds / 2;  // it waited less
  return result;
}

class PlacementMeterTest : public testing::Test {
 protected:
  ExpertCensus census_{{.num_layers = 2, .num_experts = 2, .top_k = 1}, 1000};
  PlacementMeter meter_{20'000'000, 0};
};

TEST_F(PlacementMeterTest, BeforeTheFirstStepCostsAreThoseOfThisKindOfMachine) {
  EXPECT_EQ(meter_.row_seconds(), 0);
  const MoveCosts costs = meter_.Costs();
  EXPECT_EQ(costs.copy_ps, 2'000'000'000);  // 20 MB at 10 GB/s
  EXPECT_EQ(costs.row_ps, 400'000'000);     // 10 M weights, 2 operations each, at 50 GFLOP/s
  EXPECT_EQ(costs.layer_ps, 0);
  EXPECT_EQ(PlacementMeter(20'000'000, 1e9).Costs().copy_ps, 20'000'000'000);
  EXPECT_TRUE(meter_.Profiles(census_).empty());
}

TEST_F(PlacementMeterTest, CostsAreMeasured) {
  ASSERT_TRUE(census_.Add(Phase::kPrefill, {3, 1, 2, 2}).ok());
  meter_.Add(Step(4e-3, 8, 10e-3), census_);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_DOUBLE_EQ(meter_.layer_seconds(), 5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  EXPECT_EQ(meter_.Costs().layer_ps, 5'000'000'000);
  const ResidencyCosts costs = meter_.PlanCosts(77);
  EXPECT_DOUBLE_EQ(costs.row_seconds, 0.5e-3);
  EXPECT_DOUBLE_EQ(costs.move_seconds, 2e-3);
  EXPECT_EQ(costs.horizon_steps, 77);
  // What is new counts more.
  meter_.Fade();
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  meter_.Add(Step(4e-3, 4, 10e-3), census_);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 6e-3 / 8);
}

TEST_F(PlacementMeterTest, StepsOfAPhaseAreThoseWithItsTokens) {
  ASSERT_TRUE(census_.Add(Phase::kPrefill, {30, 10, 20, 20}).ok());
  ASSERT_TRUE(census_.Add(Phase::kDecode, {2, 0, 1, 1}).ok());
  meter_.Add(Step(1, 1, 1), census_);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(census_.Add(Phase::kDecode, {2, 0, 1, 1}).ok());
    meter_.Add(Step(1, 1, 1), census_);
  }
  const std::vector<PhaseProfile> profiles = meter_.Profiles(census_);
  ASSERT_EQ(profiles.size(), 2u);
  EXPECT_EQ(profiles[0].steps, 1);
  EXPECT_EQ(profiles[1].steps, 5);
  EXPECT_EQ(profiles[0].rows[0], FromCounts({30, 10}));
  EXPECT_EQ(profiles[1].rows[1], FromCounts({5, 5}));
  // The census halves rows and tokens; the steps that they stand for follow.
  ASSERT_TRUE(census_.Add(Phase::kPrefill, {1000, 960, 980, 980}).ok());
  meter_.Add(Step(1, 1, 1), census_);
  EXPECT_EQ(census_.num_tokens(Phase::kPrefill), 500);  // halved twice
  EXPECT_EQ(meter_.Profiles(census_)[0].steps, 1);      // of 1000 tokens each
}

TEST_F(PlacementMeterTest, NonsenseCountsAsNothing) {
  ASSERT_TRUE(census_.Add(Phase::kPrefill, {3, 1, 2, 2}).ok());
  meter_.Add(Step(4e-3, 8, 10e-3), census_);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    meter_.Add(Step(seconds, -8, seconds), census_);
  }
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  // A model whose worker does not say how large an expert is.
  EXPECT_EQ(PlacementMeter(0, 0).Costs().copy_ps, 0);
}

// As many rows as a worker may claim.
TEST_F(PlacementMeterTest, ASumOfRowsStaysANumber) {
  constexpr int64_t kMost = ExpertCensus::kMaxCount;
  ExpertCensus census({.num_layers = 1, .num_experts = 64, .top_k = 1}, int64_t{1} << 50);
  ASSERT_TRUE(census.Add(Phase::kDecode, std::vector<int64_t>(64, kMost)).ok());
  meter_.Add(Step(1, 1, 1), census);
  EXPECT_EQ(TotalOf(meter_.Profiles(census)[0].rows[0]), (int64_t{1} << 40) * kRow);
}

TEST(PlannerThread, PlansElsewhere) {
  absl::Notification done;
  absl::StatusOr<ResidencyPlan> plan;
  std::thread::id thread;
  PlannerThread planner([&](absl::StatusOr<ResidencyPlan> made) {
    plan = std::move(made);
    thread = std::this_thread::get_id();
    done.Notify();
  });
  ResidencyProblem problem;
  problem.limits = {.device_slots = 2, .layer_slots = 2};
  problem.present = {{ContiguousPlacement(2, 2, 2), {false, false}}};
  problem.phases = {{.steps = 1, .rows = {FromCounts({1000, 1})}}};
  problem.costs = {.row_seconds = 1e-3, .move_seconds = 1e-6};
  problem.next_epoch = 5;
  planner.Plan(problem);
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->epoch, 5u);
  EXPECT_EQ(plan->copies, 1);  // a replica of the one that has all rows
  EXPECT_NE(thread, std::this_thread::get_id());
}

}  // namespace
}  // namespace switchyard
