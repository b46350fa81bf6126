#include "scheduler/placement/route/min_max.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::LeastBusiest;
using placement_drill::RandomPlacement;
using testing::ElementsAre;

void ExpectValid(const ReplicaIndex& replicas, const std::vector<int64_t>& rows, const MinMaxLoads& split) {
  std::vector<int64_t> loads(replicas.num_devices(), 0);
  for (int expert = 0; expert < replicas.num_experts(); ++expert) {
    int64_t sum = 0;
    for (int32_t r = replicas.FirstReplica(expert); r < replicas.EndReplica(expert); ++r) {
      EXPECT_GE(split.rows[r], 0);
      EXPECT_EQ(replicas.ExpertOf(r), expert);
      sum += split.rows[r];
      loads[replicas.DeviceOf(r)] += split.rows[r];
    }
    EXPECT_EQ(sum, rows[expert]) << "expert " << expert;
  }
  EXPECT_EQ(split.loads, loads);
  EXPECT_EQ(split.busiest, *std::max_element(loads.begin(), loads.end()));
}

TEST(MinMaxTest, ReplicasAreNumberedByExpertThenDevice) {
  const ReplicaIndex replicas({.num_experts = 3, .slots = {{2, 0}, {kEmptySlot, 1}, {0, kEmptySlot}}});
  EXPECT_EQ(replicas.num_replicas(), 4);
  EXPECT_EQ(replicas.NumReplicas(0), 2);
  EXPECT_EQ(replicas.DeviceOf(replicas.FirstReplica(0)), 0);
  EXPECT_EQ(replicas.DeviceOf(replicas.FirstReplica(0) + 1), 2);
  EXPECT_THAT(replicas.OnDevice(0), ElementsAre(0, 3));
  EXPECT_THAT(replicas.OnDevice(1), ElementsAre(2));
}

TEST(MinMaxTest, RowsTravelAlongAChainOfSharedExperts) {
  // Expert 0 is hot on device 0 and 1; device 1 has to hand expert 1 on to 2, and so on.
  const ReplicaIndex replicas({.num_experts = 4, .slots = {{0}, {0, 1}, {1, 2}, {2, 3}}});
  const std::vector<int64_t> rows = {70, 10, 10, 10};
  const MinMaxLoads split = MinimizeBusiest(replicas, rows);
  EXPECT_EQ(split.busiest, 35);  // 70 rows on two devices, whatever the others do
  ExpectValid(replicas, rows, split);
  EXPECT_EQ(MinimizeBusiest(replicas, {40, 40, 10, 10}).busiest, 27);  // 80 rows on three
  EXPECT_EQ(MinimizeBusiest(replicas, {25, 25, 25, 25}).busiest, 25);
}

TEST(MinMaxTest, Edges) {
  const ReplicaIndex replicas(ContiguousPlacement(2, 3, 1));  // the last device holds nothing
  EXPECT_EQ(MinimizeBusiest(replicas, {0, 0}).busiest, 0);
  EXPECT_THAT(MinimizeBusiest(replicas, {7, 0}).loads, ElementsAre(7, 0, 0));
  const ReplicaIndex everywhere({.num_experts = 1, .slots = {{0}, {0}, {0}}});
  EXPECT_EQ(MinimizeBusiest(everywhere, {8}).busiest, 3);
}

TEST(MinMaxTest, TheOptimumWhateverTheStart) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 3000; ++round) {
    const int num_devices = 1 + static_cast<int>(rng() % 7), slots = 1 + static_cast<int>(rng() % 4);
    const int num_experts = 1 + static_cast<int>(rng() % (num_devices * slots));
    const Placement placement = placement_drill::RandomPlacement(rng, num_experts, num_devices, slots);
    const ReplicaIndex replicas(placement);
    std::vector<int64_t> rows(num_experts);
    const int64_t most = round % 2 == 0 ? 9 : 100000;
    for (int64_t& r : rows) r = static_cast<int64_t>(rng() % most);
    const MinMaxLoads split = MinimizeBusiest(replicas, rows);
    ExpectValid(replicas, rows, split);
    const int64_t least = placement_drill::LeastBusiest(placement, rows);
    ASSERT_EQ(split.busiest, least) << placement.ToString();
    // All rows on each expert's last replica: the worst of starts.
    std::vector<int64_t> start(replicas.num_replicas(), 0);
    for (int e = 0; e < num_experts; ++e) start[replicas.EndReplica(e) - 1] = rows[e];
    const MinMaxLoads other = MinimizeBusiestFrom(replicas, start);
    ExpectValid(replicas, rows, other);
    ASSERT_EQ(other.busiest, least) << placement.ToString();
  }
}

}  // namespace
}  // namespace switchyard::placement
