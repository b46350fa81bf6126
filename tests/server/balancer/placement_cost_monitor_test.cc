// Costs for placement, measured from steps.
#include "server/balancer/placement_cost_monitor.h"

#include <limits>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/balancer/pending_migration.h"
#include "tests/server/balancer/share_layers.h"

namespace switchyard::server {
namespace {

batching::StepResult Step(double expert_seconds, int64_t expert_rows, double total_seconds) {
  batching::StepResult result;
  result.ranks.resize(2);
  result.ranks[0].timings = {.total_seconds = total_seconds, .expert_seconds = expert_seconds};
  result.ranks[0].expert_rows = expert_rows;
  result.ranks[1].timings.total_seconds = total_seconds / 2;  // it waited less
  return result;
}

class PlacementCostMonitorTest : public testing::Test {
 protected:
  popularity::ExpertLoadStats load_stats_{{.num_layers = 2, .num_experts = 2, .top_k = 1}, 1000};
  PlacementCostMonitor meter_{20'000'000, 0};
};

TEST_F(PlacementCostMonitorTest, BeforeTheFirstStepCostsAreThoseOfThisKindOfMachine) {
  EXPECT_EQ(meter_.row_seconds(), 0);
  const placement::MoveCosts costs = meter_.Costs();
  EXPECT_EQ(costs.copy_ps, 2'000'000'000);  // 20 MB at 10 GB/s
  EXPECT_EQ(costs.row_ps, 400'000'000);     // 10 M weights, 2 operations each, at 50 GFLOP/s
  EXPECT_EQ(costs.layer_ps, 0);
  EXPECT_EQ(PlacementCostMonitor(20'000'000, 1e9).Costs().copy_ps, 20'000'000'000);
  EXPECT_TRUE(meter_.Profiles(load_stats_).empty());
}

TEST_F(PlacementCostMonitorTest, CostsAreMeasured) {
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {3, 1, 2, 2}).ok());
  meter_.Add(Step(4e-3, 8, 10e-3), load_stats_);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_DOUBLE_EQ(meter_.layer_seconds(), 5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  EXPECT_EQ(meter_.Costs().layer_ps, 5'000'000'000);
  const placement::ResidencyCosts costs = meter_.PlanCosts(77);
  EXPECT_DOUBLE_EQ(costs.row_seconds, 0.5e-3);
  EXPECT_DOUBLE_EQ(costs.move_seconds, 2e-3);
  EXPECT_EQ(costs.horizon_steps, 77);
  // New measurements count more.
  meter_.Fade();
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  meter_.Add(Step(4e-3, 4, 10e-3), load_stats_);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 6e-3 / 8);
}

// Copies are measured by workers' reports, and are never faster than the emulated link.
TEST_F(PlacementCostMonitorTest, CopiesAreMeasured) {
  constexpr int64_t kMost = PlacementCostMonitor::kMeasurableBytes;
  meter_.NoteCopies(1, kMost - 1, 1.0);
  EXPECT_DOUBLE_EQ(meter_.copy_seconds(), 2e-3) << "too few bytes to measure";
  meter_.NoteCopies(0, 1, 0);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / kMost, 1e-6);
  EXPECT_NEAR(1e-12 * static_cast<double>(meter_.Costs().copy_ps), 20e6 / kMost, 1e-6);
  // Only the growth counts, and it counts more.
  meter_.NoteCopies(1, kMost - 1, 1.0);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / kMost, 1e-6);
  meter_.Fade();
  meter_.NoteCopies(1, 3 * kMost - 1, 1.5);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / (2.5 * kMost) * 1.0, 1e-6);
  // A new process in the rank counts from 0.
  meter_.NoteCopies(1, kMost, 0.5);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / (3.5 * kMost) * 1.5, 1e-6);
  PlacementCostMonitor emulated(20'000'000, 1e6);
  emulated.NoteCopies(0, kMost, 1.0);
  EXPECT_DOUBLE_EQ(emulated.copy_seconds(), 20);
}

// Half of a rank's rows come from the other rank.
TEST_F(PlacementCostMonitorTest, ExchangedRowsHaveTheirPrice) {
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {3, 1, 2, 2}).ok());
  for (int i = 0; i < 20; ++i) {
    batching::StepResult step = Step(4e-3, 8, 10e-3);
    const int64_t rows = i % 2 == 0 ? 10 : 1000;
    step.ranks[0].rows_received = rows;
    step.ranks[1].rows_received = rows / 2;
    step.ranks[0].timings.exchange_seconds = 1.0;  // waited for the other rank
    step.ranks[1].timings.exchange_seconds = 2e-3 + 1e-4 * static_cast<double>(rows);
    meter_.Add(step, load_stats_);
  }
  EXPECT_NEAR(meter_.exchange_row_seconds(), 1e-4, 1e-9);
  EXPECT_NEAR(meter_.PlanCosts(1).row_seconds, 0.5e-3 + 0.5e-4, 1e-9);
  EXPECT_NEAR(static_cast<double>(meter_.Costs().row_ps), 550e6, 1e3);
}

TEST_F(PlacementCostMonitorTest, StepsOfAPhaseAreThoseWithItsTokens) {
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {30, 10, 20, 20}).ok());
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kDecode, {2, 0, 1, 1}).ok());
  meter_.Add(Step(1, 1, 1), load_stats_);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(load_stats_.Add(popularity::Phase::kDecode, {2, 0, 1, 1}).ok());
    meter_.Add(Step(1, 1, 1), load_stats_);
  }
  const std::vector<placement::PhaseProfile> profiles = meter_.Profiles(load_stats_);
  ASSERT_EQ(profiles.size(), 2u);
  EXPECT_EQ(profiles[0].steps, 1);
  EXPECT_EQ(profiles[1].steps, 5);
  EXPECT_EQ(profiles[0].rows[0], popularity::FromCounts({30, 10}));
  EXPECT_EQ(profiles[1].rows[1], popularity::FromCounts({5, 5}));
  // The load statistics halve rows and tokens; the number of steps follows.
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {1000, 960, 980, 980}).ok());
  meter_.Add(Step(1, 1, 1), load_stats_);
  EXPECT_EQ(load_stats_.num_tokens(popularity::Phase::kPrefill), 500);  // halved twice
  EXPECT_EQ(meter_.Profiles(load_stats_)[0].steps, 1);                  // of 1000 tokens each
}

TEST_F(PlacementCostMonitorTest, NonsenseCountsAsNothing) {
  ASSERT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {3, 1, 2, 2}).ok());
  meter_.Add(Step(4e-3, 8, 10e-3), load_stats_);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    meter_.Add(Step(seconds, -8, seconds), load_stats_);
  }
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  // A worker that does not report the size of an expert.
  EXPECT_EQ(PlacementCostMonitor(0, 0).Costs().copy_ps, 0);
}

// As many rows as a worker's report may claim.
TEST_F(PlacementCostMonitorTest, ASumOfRowsStaysANumber) {
  constexpr int64_t kMost = popularity::ExpertLoadStats::kMaxCount;
  popularity::ExpertLoadStats load_stats({.num_layers = 1, .num_experts = 64, .top_k = 1}, int64_t{1} << 50);
  ASSERT_TRUE(load_stats.Add(popularity::Phase::kDecode, std::vector<int64_t>(64, kMost)).ok());
  meter_.Add(Step(1, 1, 1), load_stats);
  EXPECT_EQ(popularity::TotalOf(meter_.Profiles(load_stats)[0].rows[0]), (int64_t{1} << 40) * popularity::kRow);
}

TEST(PlannerThread, PlansElsewhere) {
  absl::Notification done;
  absl::StatusOr<PendingMigration> plan;
  std::thread::id thread;
  PlannerThread planner([&](absl::StatusOr<PendingMigration> made) {
    plan = std::move(made);
    thread = std::this_thread::get_id();
    done.Notify();
  });
  popularity::ExpertLoadStats load_stats({.num_layers = 1, .num_experts = 2, .top_k = 1}, 1 << 20);
  ASSERT_TRUE(load_stats.Add(popularity::Phase::kDecode, {1000, 1}).ok());
  PlacementCostMonitor meter(1000, 0);
  meter.Add(Step(1.0, 1001, 2.0), load_stats);
  const LayerStates present = ShareLayers({placement::ContiguousPlacement(2, 2, 2)});
  planner.Plan({.load_stats = load_stats,
                .meter = meter,
                .present = present,
                .layer_slots = 2,
                .horizon_steps = 300,
                .next_epoch = 5});
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan.epoch, 5u);
  EXPECT_EQ(plan->plan.copies, 1);  // a replica of the expert that has all rows
  EXPECT_NE(thread, std::this_thread::get_id());
  ASSERT_EQ(plan->after.size(), plan->plan.migrations.size());
  EXPECT_EQ(CopyLayers(plan->after.back()), plan->plan.layers);
}

// A migration changes its layers; other layers are shared, not copied.
TEST(PendingMigration, SharesWhatStaysAsItIs) {
  const placement::Placement layer = placement::ContiguousPlacement(2, 2, 2);
  const LayerStates present = ShareLayers({layer, layer});
  placement::ResidencyPlan plan;
  plan.migrations = {{.arrivals = {{1, 0, 1, 1}}, .departures = {}}, {.arrivals = {}, .departures = {{1, 0, 0, 0}}}};
  const auto pending = MakePendingMigration(plan, present, /*layer_slots=*/2);
  ASSERT_TRUE(pending.ok()) << pending.status();
  ASSERT_EQ(pending->after.size(), 2u);
  EXPECT_EQ(pending->after[1][0], present[0]) << "the very same";
  EXPECT_EQ(pending->after[0][1]->DevicesOf(0), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(pending->after[1][1]->DevicesOf(0), (std::vector<int32_t>{1}));
  EXPECT_EQ(*present[1], layer);
  plan.migrations[0].arrivals[0].expert = 1;  // already there
  EXPECT_FALSE(MakePendingMigration(plan, present, /*layer_slots=*/2).ok());
}

}  // namespace
}  // namespace switchyard::server
