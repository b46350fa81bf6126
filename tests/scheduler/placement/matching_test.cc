#include "scheduler/placement/lina/matching.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/lina/paper_allocation.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::CountArrivals;

using testing::ElementsAre;
using testing::IsEmpty;

int64_t CostOf(const std::vector<int64_t>& cost, const std::vector<int>& column_of) {
  int64_t sum = 0;
  for (size_t row = 0; row < column_of.size(); ++row) sum += cost[row * column_of.size() + column_of[row]];
  return sum;
}

TEST(MatchingTest, SmallOnesByHand) {
  EXPECT_THAT(MinCostAssignment({}, 0), IsEmpty());
  EXPECT_THAT(MinCostAssignment({7}, 1), ElementsAre(0));
  // Greedy by row would take 1 + 9.
  EXPECT_THAT(MinCostAssignment({1, 2, 3, 9}, 2), ElementsAre(1, 0));
  EXPECT_THAT(MinCostAssignment({-5, 0, 0, 0, -5, 0, 0, 0, -5}, 3), ElementsAre(0, 1, 2));
}

// Against all permutations.
TEST(MatchingTest, MinimalOverAllPermutations) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + static_cast<int>(random() % 6);
    std::vector<int64_t> cost(static_cast<size_t>(n) * n);
    for (int64_t& entry : cost) entry = static_cast<int64_t>(random() % 20) - 5;
    std::vector<int> columns(n);
    std::iota(columns.begin(), columns.end(), 0);
    int64_t best = CostOf(cost, columns);
    while (std::next_permutation(columns.begin(), columns.end())) best = std::min(best, CostOf(cost, columns));
    const std::vector<int> found = MinCostAssignment(cost, n);
    EXPECT_EQ(CostOf(cost, found), best) << "round " << round;
    std::vector<int> sorted = found;
    std::sort(sorted.begin(), sorted.end());
    std::iota(columns.begin(), columns.end(), 0);
    EXPECT_EQ(sorted, columns) << "each column once";
    EXPECT_EQ(MinCostAssignment(cost, n), found);
  }
}

TEST(MatchingTest, RenumberedDevicesMoveNothing) {
  const Placement from{.num_experts = 6, .slots = {{0, 1, kEmptySlot}, {2, 3, 0}, {4, 5, 2}}};
  const Placement to{.num_experts = 6, .slots = {{5, 2, 4}, {1, kEmptySlot, 0}, {0, 3, 2}}};
  EXPECT_EQ(placement_drill::CountArrivals(from, to), 6);  // only expert 0 on device 1 and 2 on device 2 stay
  EXPECT_EQ(MatchDevices(from, to), from);
}

// Never more arrivals than without, and the same sets of experts together.
TEST(MatchingTest, FewerArrivalsThanThePapersAllocationAlone) {
  std::mt19937 random(2);
  int64_t plain = 0, matched = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> load(32), noisy(32);
    for (size_t e = 0; e < load.size(); ++e) {
      load[e] = 100 + static_cast<int64_t>(random() % 1000);
      noisy[e] = load[e] * (90 + static_cast<int64_t>(random() % 21)) / 100;
    }
    const Placement from = *AllocateAsPaper(load, 8, 5);
    const Placement to = *AllocateAsPaper(noisy, 8, 5);
    const Placement better = MatchDevices(from, to);
    ASSERT_TRUE(CheckPlacement(better).ok());
    EXPECT_LE(placement_drill::CountArrivals(from, better), placement_drill::CountArrivals(from, to));
    plain += placement_drill::CountArrivals(from, to);
    matched += placement_drill::CountArrivals(from, better);
    auto sets = [](Placement placement) {
      for (auto& device : placement.slots) std::sort(device.begin(), device.end());
      std::sort(placement.slots.begin(), placement.slots.end());
      return placement.slots;
    };
    EXPECT_EQ(sets(better), sets(to));
  }
  EXPECT_LT(matched, plain);
}

}  // namespace
}  // namespace switchyard::placement
