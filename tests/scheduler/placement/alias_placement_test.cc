#include "scheduler/placement/lina/alias_placement.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/route/min_max.h"
#include "scheduler/popularity/popularity.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::ZipfRows;
using testing::IsEmpty;

constexpr int64_t kTotal = int64_t{1} << 40;

// Busiest over mean if the rows are split as well as can be.
double Imbalance(const Placement& placement, const popularity::Popularity& rows) {
  const auto mean = static_cast<double>(popularity::TotalOf(rows)) / placement.num_devices();
  return static_cast<double>(MinimizeBusiest(ReplicaIndex(placement), rows).busiest) / mean;
}

// Rows that differ from these by about this total variation.
popularity::Popularity Otherwise(std::mt19937_64& rng, const popularity::Popularity& estimate, double tv) {
  popularity::Popularity rows = estimate;
  for (double factor = 0.01; TotalVariation(rows, estimate) < tv; factor *= 1.1) {
    std::mt19937_64 same = rng;
    for (size_t e = 0; e < rows.size(); ++e) {
      const double shift = static_cast<double>(same() % 2001) / 1000 - 1;
      rows[e] = static_cast<int64_t>(static_cast<double>(estimate[e]) * std::exp(factor * shift));
    }
  }
  rng.discard(rows.size());
  return rows;
}

TEST(AliasPlacementTest, AsManyExpertsAsDevicesTwoSlotsAreEnough) {
  std::mt19937_64 rng(6);
  for (int round = 0; round < 500; ++round) {
    const int n = 2 + static_cast<int>(rng() % 31);
    popularity::Popularity rows = placement_drill::ZipfRows(rng, n, static_cast<double>(rng() % 20) / 10, kTotal);
    if (round % 3 == 0) rows[rng() % n] = 0;
    const Placement placement = FillEmptySlots(ContiguousPlacement(n, n, 1), {}, rows);
    ASSERT_TRUE(CheckPlacement(placement).ok());
    EXPECT_LE(Imbalance(placement, rows), 1.0001) << placement.ToString();
  }
}

TEST(AliasPlacementTest, ResidentsStay) {
  std::mt19937_64 rng(8);
  const Placement base = ContiguousPlacement(64, 16, 1);
  for (int round = 0; round < 50; ++round) {
    const popularity::Popularity rows = placement_drill::ZipfRows(rng, 64, 1.0, kTotal);
    const Placement filled = FillEmptySlots(base, {}, rows);
    ASSERT_TRUE(CheckPlacement(filled).ok());
    for (int d = 0; d < 16; ++d) {
      for (int slot = 0; slot < 4; ++slot) EXPECT_EQ(filled.slots[d][slot], base.slots[d][slot]);
    }
    EXPECT_LE(Imbalance(filled, rows), 1.02);
  }
}

TEST(AliasPlacementTest, WhatIsThereStaysWhileRowsDo) {
  std::mt19937_64 rng(10);
  for (const int spare : {1, 2, 3}) {
    const Placement base = ContiguousPlacement(32, 16, spare);
    const popularity::Popularity rows = placement_drill::ZipfRows(rng, 32, 0.8, kTotal);
    const Placement present = FillEmptySlots(base, {}, rows);
    EXPECT_THAT(ChangesBetween(present, FillEmptySlots(base, present, rows)), IsEmpty());
    // A little noise moves less than starting anew does.
    const popularity::Popularity noisy = Otherwise(rng, rows, 0.02);
    EXPECT_LT(ChangesBetween(present, FillEmptySlots(base, present, noisy)).size(),
              ChangesBetween(present, FillEmptySlots(base, {}, noisy)).size());
  }
}

TEST(AliasPlacementTest, OnlyWhatTheMeanNeedsMoves) {
  const Placement base{.num_experts = 3, .slots = {{0, kEmptySlot}, {1, kEmptySlot}, {2, kEmptySlot}}};
  const Placement present{.num_experts = 3, .slots = {{0, 2}, {1, kEmptySlot}, {2, 1}}};
  // Device 1 needs rows of expert 0; device 0 has no use for its slot, device 2 neither.
  const popularity::Popularity rows = {40, 20, 30};
  EXPECT_EQ(FillEmptySlots(base, present, rows).ToString(), "[0 2] [1 0] [2 1]");
  EXPECT_EQ(FillEmptySlots(base, {}, rows).ToString(), "[0 -] [1 0] [2 -]");
}

// Nothing is known, nothing moves, and three slots still balance most loads.
TEST(AliasPlacementTest, SpreadReplicasFindWaysAround) {
  std::mt19937_64 rng(12);
  const Placement spread = SpreadReplicas(ContiguousPlacement(16, 16, 2));
  ASSERT_TRUE(CheckPlacement(spread).ok());
  const ReplicaIndex replicas(spread);
  for (int e = 0; e < 16; ++e) EXPECT_EQ(replicas.NumReplicas(e), 3);
  double mean = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round)
    mean += Imbalance(spread, placement_drill::ZipfRows(rng, 16, 1.0, kTotal)) / kRounds;
  EXPECT_LE(mean, 1.65) << spread.ToString();
}

TEST(AliasPlacementTest, Edges) {
  EXPECT_EQ(SpreadReplicas(ContiguousPlacement(2, 2, 0)).ToString(), "[0] [1]") << "no slot is empty";
  EXPECT_EQ(SpreadReplicas(ContiguousPlacement(2, 2, 1)).ToString(), "[0 1] [1 0]");
  EXPECT_EQ(SpreadReplicas(ContiguousPlacement(2, 1, 2)).ToString(), "[0 1 - -]") << "one device has all";
  EXPECT_EQ(FillEmptySlots(ContiguousPlacement(2, 2, 1), {}, {7, 1}).ToString(), "[0 -] [1 0]");
  EXPECT_EQ(FillEmptySlots(ContiguousPlacement(2, 2, 1), {}, {0, 0}).ToString(), "[0 -] [1 -]");
}

}  // namespace
}  // namespace switchyard::placement
