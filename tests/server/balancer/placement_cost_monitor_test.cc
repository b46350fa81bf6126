// Costs for placement, measured from steps.
#include "server/balancer/placement_cost_monitor.h"

#include <limits>

#include "gtest/gtest.h"

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
  PlacementCostMonitor meter_{20'000'000, 0};
};

// A device that replays a step counts nothing in it.
TEST_F(PlacementCostMonitorTest, StepsWithoutMeasurementsAddNothing) {
  EXPECT_TRUE(meter_.Add(Step(4e-3, 8, 10e-3)));
  batching::StepResult replayed = Step(0, 8, 0);
  for (batching::RankResult& rank : replayed.ranks) rank.rows_received = 0;
  EXPECT_FALSE(meter_.Add(replayed));
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
}

TEST_F(PlacementCostMonitorTest, BeforeTheFirstStepCostsAreThoseOfThisKindOfMachine) {
  EXPECT_EQ(meter_.row_seconds(), 0);
  const placement::LayerCosts costs = meter_.Costs();
  EXPECT_EQ(costs.copy_ps, 2'000'000'000);  // 20 MB at 10 GB/s
  EXPECT_EQ(costs.row_ps, 400'000'000);     // 10 M weights, 2 operations each, at 50 GFLOP/s
  EXPECT_EQ(PlacementCostMonitor(20'000'000, 1e9).Costs().copy_ps, 20'000'000'000);
}

TEST_F(PlacementCostMonitorTest, CostsAreMeasured) {
  meter_.Add(Step(4e-3, 8, 10e-3));
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  // New measurements count more.
  meter_.Fade();
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  meter_.Add(Step(4e-3, 4, 10e-3));
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 6e-3 / 8);
}

TEST_F(PlacementCostMonitorTest, FewRowsTellWhatWeightsTakeAndManyWhatRowsDo) {
  const auto add = [&](double seconds, int64_t rows, int64_t read) {
    batching::StepResult step = Step(seconds, rows, 10e-3);
    step.ranks[0].experts_read = read;
    meter_.Add(step);
  };
  add(4e-3, 8, 4);  // two rows an expert
  EXPECT_DOUBLE_EQ(meter_.weights_seconds(), 1e-3);
  EXPECT_EQ(meter_.Costs().weights_ps, 1'000'000'000);
  EXPECT_EQ(meter_.row_seconds(), 0);
  EXPECT_EQ(meter_.Costs().row_ps, 400'000'000) << "as before measurements: this was the weights' time";
  add(50e-3, 40, 4);  // between
  EXPECT_DOUBLE_EQ(meter_.weights_seconds(), 1e-3);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 50e-3 / 40) << "nothing better is known";
  add(80e-3, 320, 5);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.25e-3);
  meter_.Fade();
  add(6e-3, 2, 2);
  EXPECT_DOUBLE_EQ(meter_.weights_seconds(), 8e-3 / 4);
  // The shared expert's time is nobody's row's.
  batching::StepResult shared = Step(1.0, 320, 10e-3);
  shared.ranks[0].experts_read = 5;
  shared.ranks[0].timings.routed_seconds = 40e-3;
  meter_.Add(shared);
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 80e-3 / 480);
}

// Copies are measured by workers' reports, and are never faster than the emulated link.
TEST_F(PlacementCostMonitorTest, CopiesAreMeasured) {
  constexpr int64_t kMost = PlacementCostMonitor::kMeasurableBytes;
  meter_.NoteCopies(1, kMost - 1, 1.0);
  EXPECT_DOUBLE_EQ(meter_.copy_seconds(), 2e-3) << "too few bytes to measure";
  meter_.NoteCopies(0, 1, 0);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / kMost, 1e-6);
  EXPECT_NEAR(1e-12 * static_cast<double>(meter_.Costs().copy_ps), 20e6 / kMost, 1e-6);
  // Only the growth counts.  Few copies do not fade.
  meter_.NoteCopies(1, kMost - 1, 1.0);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / kMost, 1e-6);
  meter_.Fade();
  meter_.NoteCopies(1, 3 * kMost - 1, 1.5);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / (3.0 * kMost) * 1.5, 1e-6);
  // A new process in the rank counts from 0.
  meter_.NoteCopies(1, kMost, 0.5);
  EXPECT_NEAR(meter_.copy_seconds(), 20e6 / (4.0 * kMost) * 2.0, 1e-6);
  PlacementCostMonitor emulated(20'000'000, 1e6);
  emulated.NoteCopies(0, kMost, 1.0);
  EXPECT_DOUBLE_EQ(emulated.copy_seconds(), 20);
}

// Half of a rank's rows come from the other rank.
TEST_F(PlacementCostMonitorTest, ExchangedRowsHaveTheirPrice) {
  for (int i = 0; i < 20; ++i) {
    batching::StepResult step = Step(4e-3, 8, 10e-3);
    const int64_t rows = i % 2 == 0 ? 10 : 1000;
    step.ranks[0].rows_received = rows;
    step.ranks[1].rows_received = rows / 2;
    step.ranks[0].timings.exchange_seconds = 1.0;  // waited for the other rank
    step.ranks[1].timings.exchange_seconds = 2e-3 + 1e-4 * static_cast<double>(rows);
    meter_.Add(step);
  }
  EXPECT_NEAR(meter_.exchange_row_seconds(), 1e-4, 1e-9);
  EXPECT_NEAR(static_cast<double>(meter_.Costs().row_ps), 550e6, 1e3);
}

TEST_F(PlacementCostMonitorTest, NonsenseCountsAsNothing) {
  meter_.Add(Step(4e-3, 8, 10e-3));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    meter_.Add(Step(seconds, -8, seconds));
  }
  EXPECT_DOUBLE_EQ(meter_.row_seconds(), 0.5e-3);
  EXPECT_EQ(meter_.Costs().row_ps, 500'000'000);
  // A worker that does not report the size of an expert.
  EXPECT_EQ(PlacementCostMonitor(0, 0).Costs().copy_ps, 0);
}

}  // namespace
}  // namespace switchyard::server
