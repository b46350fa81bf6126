#include "scheduler/placement/route/split.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/route/layer_time.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::LeastBusiest;
using placement_drill::RandomCounts;
using placement_drill::RandomPlacement;
using testing::ElementsAre;
using testing::IsEmpty;

RowCounts CountsOf(const std::vector<int32_t>& rows, int num_ranks) {
  return {.num_ranks = num_ranks, .num_experts = static_cast<int>(rows.size()) / num_ranks, .rows = rows};
}

// Rows that leave their source rank.
int64_t NumExchanged(const SplitTable& table) {
  int64_t exchanged = 0;
  for (int rank = 0; rank < table.num_ranks(); ++rank) {
    for (int expert = 0; expert < table.num_experts(); ++expert) {
      for (const SplitPiece& piece : table.Pieces(rank, expert)) exchanged += piece.device == rank ? 0 : piece.rows;
    }
  }
  return exchanged;
}

// Each row has one replica that holds its expert; loads are what the pieces say.
void ExpectValid(const SplitTable& table, const RowCounts& counts, const Placement& placement) {
  std::vector<int64_t> loads(counts.num_ranks, 0);
  for (int rank = 0; rank < counts.num_ranks; ++rank) {
    for (int expert = 0; expert < counts.num_experts; ++expert) {
      int32_t ordinal = 0, before = -1;
      for (const SplitPiece& piece : table.Pieces(rank, expert)) {
        EXPECT_GT(piece.rows, 0);
        EXPECT_GT(piece.device, before);
        EXPECT_TRUE(placement.Holds(piece.device, expert));
        before = piece.device;
        ordinal += piece.rows;
        loads[piece.device] += piece.rows;
      }
      EXPECT_EQ(ordinal, counts.At(rank, expert)) << rank << " " << expert;
    }
  }
  EXPECT_EQ(table.loads(), loads);
}

TEST(SplitTest, RowsStayAtHomeAndTheRestBalances) {
  const Placement placement{.num_experts = 2, .slots = {{0, 1}, {1, 0}}};
  const ReplicaIndex replicas(placement);
  const std::vector<int32_t> rows = {6, 0, 0, 2};  // rank 0: 6 of expert 0; rank 1: 2 of expert 1
  const SplitTable table = SplitByCounts(CountsOf(rows, 2), replicas);
  EXPECT_EQ(table.busiest(), 4);
  EXPECT_EQ(NumExchanged(table), 2);
  EXPECT_THAT(table.Pieces(0, 0), ElementsAre(SplitPiece{0, 4}, SplitPiece{1, 2}));
  EXPECT_THAT(table.Pieces(0, 1), IsEmpty());
  EXPECT_THAT(table.Pieces(1, 1), ElementsAre(SplitPiece{1, 2}));
}

TEST(SplitTest, ByCountsTheBusiestIsTheLeast) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const int num_devices = 1 + static_cast<int>(rng() % 6), slots = 1 + static_cast<int>(rng() % 3);
    const int num_experts = 1 + static_cast<int>(rng() % (num_devices * slots));
    const Placement placement = placement_drill::RandomPlacement(rng, num_experts, num_devices, slots);
    const std::vector<int32_t> rows =
        placement_drill::RandomCounts(rng, num_devices, num_experts, round % 2 == 0 ? 3 : 500);
    const RowCounts counts = CountsOf(rows, num_devices);
    const SplitTable table = SplitByCounts(counts, ReplicaIndex(placement));
    ExpectValid(table, counts, placement);
    ASSERT_EQ(table.busiest(), placement_drill::LeastBusiest(placement, counts.OfExperts())) << placement.ToString();
  }
}

// The fewest rows that must leave their source, given the least busiest device: all ways to split two experts over two
// replicas each.
TEST(SplitTest, FewRowsLeaveTheirSource) {
  std::mt19937_64 rng(4);
  int64_t ours = 0, fewest_in_all = 0;
  for (int round = 0; round < 400; ++round) {
    const Placement placement{.num_experts = 3, .slots = {{0, 1}, {1, 2}, {2, 0}}};
    const ReplicaIndex replicas(placement);
    const std::vector<int32_t> rows = placement_drill::RandomCounts(rng, 3, 3, 8);
    const RowCounts counts = CountsOf(rows, 3);
    const std::vector<int64_t> of = counts.OfExperts();
    const SplitTable table = SplitByCounts(counts, replicas);
    int64_t fewest = std::accumulate(of.begin(), of.end(), int64_t{0});
    std::vector<int64_t> x(6);  // by replica
    for (x[0] = 0; x[0] <= of[0]; ++x[0]) {
      for (x[2] = 0; x[2] <= of[1]; ++x[2]) {
        for (x[4] = 0; x[4] <= of[2]; ++x[4]) {
          int64_t loads[3] = {}, leaving = 0;
          for (int e = 0; e < 3; ++e) x[2 * e + 1] = of[e] - x[2 * e];
          for (int r = 0; r < 6; ++r) {
            const int device = replicas.DeviceOf(r);
            loads[device] += x[r];
            leaving += std::max<int64_t>(0, x[r] - counts.At(device, r / 2));
          }
          if (*std::max_element(loads, loads + 3) <= table.busiest()) fewest = std::min(fewest, leaving);
        }
      }
    }
    EXPECT_GE(NumExchanged(table), fewest);
    ours += NumExchanged(table);
    fewest_in_all += fewest;
  }
  EXPECT_LE(ours, fewest_in_all + fewest_in_all / 50);
}

TEST(SplitTest, AFewRowsAreNotCutWhereWeightsTakeLonger) {
  const Placement placement{.num_experts = 2, .slots = {{0, 1}, {1, 0}}};
  const ReplicaIndex replicas(placement);
  const std::vector<int32_t> rows = {2, 2, 2, 2};  // each expert has four, two on either rank
  const RowCounts counts = CountsOf(rows, 2);
  EXPECT_THAT(SplitByCounts(counts, replicas).Pieces(0, 0), ElementsAre(SplitPiece{0, 2}));
  const LayerCosts reads{.weights_ps = 1000, .row_ps = 100};
  const SplitTable whole = SplitByCounts(counts, replicas, reads);
  ExpectValid(whole, counts, placement);
  EXPECT_EQ(LayerTime(whole, reads), 1000) << "cut, each device reads both";
  const LayerCosts products{.weights_ps = 100, .row_ps = 100};
  EXPECT_EQ(LayerTime(SplitByCounts(counts, replicas, products), products), 400);
}

// Beside all ways to place experts whole, and beside the split that has the fewest rows on the busiest.
TEST(SplitTest, WhereWeightsTakeLongerTheBusiestIsDoneSooner) {
  std::mt19937_64 rng(5);
  int sooner = 0;
  int64_t ours = 0, best_whole = 0;
  for (int round = 0; round < 500; ++round) {
    const int num_devices = 2 + static_cast<int>(rng() % 4), num_experts = 2 + static_cast<int>(rng() % 5);
    const Placement placement = placement_drill::RandomPlacement(rng, num_experts, num_devices, 3);
    const ReplicaIndex replicas(placement);
    const std::vector<int32_t> rows = placement_drill::RandomCounts(rng, num_devices, num_experts, 3);
    const RowCounts counts = CountsOf(rows, num_devices);
    const LayerCosts costs{.weights_ps = static_cast<int64_t>(rng() % 2000), .row_ps = 100};
    const SplitTable table = SplitByCounts(counts, replicas, costs);
    ExpectValid(table, counts, placement);
    const int64_t time = LayerTime(table, costs), by_rows = LayerTime(SplitByCounts(counts, replicas), costs);
    ASSERT_LE(time, by_rows) << placement.ToString();
    sooner += time < by_rows;
    const std::vector<int64_t> of = counts.OfExperts();
    int64_t best = INT64_MAX;
    std::vector<int32_t> choice(static_cast<size_t>(num_experts), 0);
    for (bool more = true; more;) {
      std::vector<int64_t> times(static_cast<size_t>(num_devices), 0);
      for (int e = 0; e < num_experts; ++e) {
        times[replicas.DeviceOf(replicas.FirstReplica(e) + choice[e])] += costs.OfExpert(of[e]);
      }
      best = std::min(best, *std::max_element(times.begin(), times.end()));
      more = false;
      for (int e = 0; e < num_experts && !more; ++e) {
        more = ++choice[e] < replicas.NumReplicas(e);
        if (!more) choice[e] = 0;
      }
    }
    ours += time;
    best_whole += best;
  }
  EXPECT_GT(sooner, 100);
  EXPECT_LE(ours, best_whole + best_whole / 50);
}

TEST(LayerTimeTest, CopiesRunBesideTheExpertsThatAreThere) {
  const Placement placement{.num_experts = 2, .slots = {{0, kEmptySlot}, {1, 0}}};
  const std::vector<int32_t> rows = {10, 0, 0,
                                     4};  // seven rows of expert 0 on device 0, three on device 1; four of expert 1
  const SplitTable split = SplitByCounts(CountsOf(rows, 2), ReplicaIndex(placement));
  LayerCosts costs{.copy_ps = 30, .row_ps = 10};
  EXPECT_EQ(split.loads(), (std::vector<int64_t>{7, 7}));
  const std::vector<SlotChange> copy = {{.device = 1, .slot = 1, .expert = 0}};
  EXPECT_EQ(LayerTime(split, costs), 70);
  EXPECT_EQ(LayerTime(split, costs, copy), 70) << "hidden by expert 1's rows";
  costs.copy_ps = 60;
  EXPECT_EQ(LayerTime(split, costs, copy), 60 + 30);
  const std::vector<SlotChange> emptied = {{.device = 1, .slot = 1, .expert = kEmptySlot}};
  EXPECT_EQ(LayerTime(split, costs, emptied), 70);
}

TEST(SplitTest, AsPlannedKeepsTheProportions) {
  const Placement placement{.num_experts = 2, .slots = {{0}, {0, 1}, {1}}};
  const ReplicaIndex replicas(placement);
  const std::vector<int32_t> rows = {10, 0, 0, 3, 0, 0};
  const RowCounts counts = CountsOf(rows, 3);
  const SplitTable table = SplitAsPlanned(counts, replicas, {30, 10, 0, 0});
  ExpectValid(table, counts, placement);
  EXPECT_THAT(table.loads(), ElementsAre(8, 4, 1));  // 7.5 : 2.5, the tie to the smaller device; 1.5 : 1.5 likewise
  EXPECT_THAT(PlannedRows(replicas, {40, 20}), ElementsAre(20, 20, 0, 20));
}

TEST(SplitTest, NobodyHasRows) {
  const Placement placement = ContiguousPlacement(4, 2, 1);
  const std::vector<int32_t> rows(8, 0);
  const SplitTable table = SplitByCounts(CountsOf(rows, 2), ReplicaIndex(placement));
  ExpectValid(table, CountsOf(rows, 2), placement);
  EXPECT_EQ(table.busiest(), 0);
  EXPECT_EQ(table, SplitAsPlanned(CountsOf(rows, 2), ReplicaIndex(placement), std::vector<int64_t>(4, 0)));
}

}  // namespace
}  // namespace switchyard::placement
