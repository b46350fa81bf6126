#include "scheduler/placement/route/split_cases.h"

#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/placement/route/min_max.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

// One case of whole rows, unscaled.
std::shared_ptr<const CaseRows> Rows(std::vector<double> rows) {
  return std::make_shared<CaseRows>(CaseRows{.num_cases = 1, .rows = std::move(rows), .weights = {1}});
}

Placement RandomPlacement(int experts, int devices, std::mt19937* random) {
  Placement placement{.num_experts = experts, .slots = std::vector<std::vector<int32_t>>(devices)};
  for (int expert = 0; expert < experts; ++expert) {
    const int home = static_cast<int>((*random)() % devices);
    for (int device = 0; device < devices; ++device) {
      if (device == home || (*random)() % 4 == 0) placement.slots[device].push_back(expert);
    }
  }
  return placement;
}

TEST(SplitCasesTest, FinalizesAtTheExactOptimum) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    const int experts = 2 + static_cast<int>(random() % 12), devices = 1 + static_cast<int>(random() % 6);
    const Placement placement = RandomPlacement(experts, devices, &random);
    std::vector<double> rows(experts);
    popularity::Popularity exact(experts);
    for (int e = 0; e < experts; ++e) exact[e] = static_cast<int64_t>(random() % 100) * popularity::kRow;
    for (int e = 0; e < experts; ++e) rows[e] = static_cast<double>(exact[e]) / static_cast<double>(popularity::kRow);
    SplitCases split(placement, Rows(rows));
    split.Finalize(1000);
    const double best = static_cast<double>(MinimizeBusiest(ReplicaIndex(placement), exact).busiest) / popularity::kRow;
    EXPECT_NEAR(split.Busiest(), best, 0.05) << placement.ToString();
    EXPECT_GE(split.Busiest(), best - 1e-5) << "never too even";
    EXPECT_GE(split.Potential(), split.Busiest() - 1e-9);
  }
}

// Changing hosts one by one leads to the same loads as starting from the result.
TEST(SplitCasesTest, FollowsChanges) {
  std::mt19937 random(12);
  const Placement from = RandomPlacement(10, 4, &random), to = RandomPlacement(10, 4, &random);
  const auto rows = Rows({9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
  SplitCases changed(from, rows), fresh(to, rows);
  for (int expert = 0; expert < 10; ++expert) {
    for (int device = 0; device < 4; ++device) {
      if (to.Holds(device, expert) && !from.Holds(device, expert)) changed.AddHost(expert, device);
    }
    for (int device = 0; device < 4; ++device) {
      if (!to.Holds(device, expert) && from.Holds(device, expert)) changed.RemoveHost(expert, device);
    }
    for (int device = 0; device < to.num_devices(); ++device)
      EXPECT_EQ(changed.Hosts(device, expert), to.Holds(device, expert));
  }
  changed.Finalize(1000);
  fresh.Finalize(1000);
  double all = 0;
  for (int device = 0; device < 4; ++device) {
    EXPECT_NEAR(changed.MeanLoads()[device], fresh.MeanLoads()[device], 0.02);
    all += changed.MeanLoads()[device];
    double guests = 0;
    for (int expert = 0; expert < 10; ++expert) guests += changed.Rows(expert, device);
    EXPECT_NEAR(guests, changed.MeanLoads()[device], 1e-9);
  }
  EXPECT_NEAR(all, 45, 1e-9);
}

TEST(SplitCasesTest, CasesAreWeighted) {
  const auto rows = std::make_shared<CaseRows>(CaseRows{.num_cases = 2, .rows = {4, 0, 0, 2}, .weights = {0.75, 0.25}});
  SplitCases split({.num_experts = 2, .slots = {{0}, {1}}}, rows);
  EXPECT_DOUBLE_EQ(split.Busiest(), 0.75 * 4 + 0.25 * 2);
  split.AddHost(0, 1);
  split.Finalize(10);
  EXPECT_DOUBLE_EQ(split.Busiest(), 0.75 * 2 + 0.25 * 2);
  EXPECT_DOUBLE_EQ(split.MeanLoads()[1], 0.75 * 2 + 0.25 * 2);
  EXPECT_GT(split.Pressures()[0], 0.3);
}

}  // namespace
}  // namespace switchyard::placement
