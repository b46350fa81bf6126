#include "scheduler/placement/lina/alias_placement.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/route/min_max.h"
#include "tests/lab/placement/alias_anew.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using placement_drill::ZipfRows;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kTotal = int64_t{1} << 40;

Placement Alias(const popularity::Popularity& estimate, const AliasShape& shape) {
  const absl::StatusOr<Placement> placement = AliasPlacement(estimate, shape);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *placement;
}

// Busiest over mean if the rows are split as well as can be.
double Imbalance(const Placement& placement, const popularity::Popularity& rows) {
  const auto mean = static_cast<double>(popularity::TotalOf(rows)) / placement.num_devices();
  return static_cast<double>(MinimizeBusiest(ReplicaIndex(placement), rows).busiest) / mean;
}

// Rows that differ from the estimate by about this total variation.
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
    popularity::Popularity estimate = placement_drill::ZipfRows(rng, n, static_cast<double>(rng() % 20) / 10, kTotal);
    if (round % 3 == 0) estimate[rng() % n] = 0;
    const Placement placement = Alias(estimate, {.num_devices = n, .slots_per_device = 2});
    ASSERT_TRUE(CheckPlacement(placement).ok());
    EXPECT_LE(Imbalance(placement, estimate), 1.0001) << placement.ToString();
  }
}

TEST(AliasPlacementTest, ManyExpertsADeviceOneSpareSlotIsEnough) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 60; ++round) {
    const int n = round % 2 == 0 ? 16 : 32, m = 2 << (round % 3);
    const popularity::Popularity estimate = placement_drill::ZipfRows(rng, m * n, 0.5 + 0.1 * (round % 6), kTotal);
    const Placement placement = Alias(estimate, {.num_devices = n, .slots_per_device = m + 1});
    ASSERT_TRUE(CheckPlacement(placement).ok());
    EXPECT_LE(Imbalance(placement, estimate), 1.002) << n << " devices, " << m << " experts each";
  }
}

TEST(AliasPlacementTest, ResidentsStay) {
  std::mt19937_64 rng(8);
  const Placement base = ContiguousPlacement(64, 16, 1);
  for (int round = 0; round < 50; ++round) {
    const popularity::Popularity estimate = placement_drill::ZipfRows(rng, 64, 1.0, kTotal);
    const Placement filled = FillEmptySlots(base, {}, {.estimate = estimate});
    ASSERT_TRUE(CheckPlacement(filled).ok());
    for (int d = 0; d < 16; ++d) {
      for (int slot = 0; slot < 4; ++slot) EXPECT_EQ(filled.slots[d][slot], base.slots[d][slot]);
    }
    EXPECT_LE(Imbalance(filled, estimate), 1.02);
  }
}

TEST(AliasPlacementTest, AnErrorOfTheEstimateCostsLittle) {
  std::mt19937_64 rng(9);
  double one = 0, two = 0;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const popularity::Popularity estimate = placement_drill::ZipfRows(rng, 16, 1.0, kTotal),
                                 rows = Otherwise(rng, estimate, 0.06);
    one += Imbalance(Alias(estimate, {.num_devices = 16, .slots_per_device = 2}), rows) / kRounds;
    two +=
        Imbalance(Alias(estimate, {.num_devices = 16, .slots_per_device = 3, .error = popularity::kRow / 16}), rows) /
        kRounds;
  }
  EXPECT_LE(one, 1.05);
  EXPECT_LE(two, 1.001);
}

TEST(AliasPlacementTest, WhatIsThereStaysWhileTheEstimateDoes) {
  std::mt19937_64 rng(10);
  for (const int spare : {1, 2, 3}) {
    const Placement base = ContiguousPlacement(32, 16, spare);
    const popularity::Popularity estimate = placement_drill::ZipfRows(rng, 32, 0.8, kTotal);
    const Placement present = FillEmptySlots(base, {}, {.estimate = estimate, .error = popularity::kRow / 10});
    EXPECT_THAT(
        ChangesBetween(present, FillEmptySlots(base, present, {.estimate = estimate, .error = popularity::kRow / 10})),
        IsEmpty());
    // A little noise moves less than starting anew does.
    const popularity::Popularity noisy = Otherwise(rng, estimate, 0.02);
    const size_t moved =
        ChangesBetween(present, FillEmptySlots(base, present, {.estimate = noisy, .error = popularity::kRow / 10}))
            .size();
    EXPECT_LT(
        moved,
        ChangesBetween(present, FillEmptySlots(base, {}, {.estimate = noisy, .error = popularity::kRow / 10})).size());
  }
}

TEST(AliasPlacementTest, WithoutHedgesOnlyWhatTheMeanNeedsMoves) {
  const Placement base{.num_experts = 3, .slots = {{0, kEmptySlot}, {1, kEmptySlot}, {2, kEmptySlot}}};
  const Placement present{.num_experts = 3, .slots = {{0, 2}, {1, kEmptySlot}, {2, 1}}};
  // Device 1 needs rows of expert 0; device 0 has no use for its slot, device 2 neither.
  const popularity::Popularity estimate = {40, 20, 30};
  EXPECT_EQ(FillEmptySlots(base, present, {.estimate = estimate, .hedge = false}).ToString(), "[0 2] [1 0] [2 1]");
  EXPECT_EQ(FillEmptySlots(base, {}, {.estimate = estimate, .hedge = false}).ToString(), "[0 -] [1 0] [2 -]");
}

TEST(AliasPlacementTest, AnEstimateThatSaysNothingIsNotFollowed) {
  std::mt19937_64 rng(11);
  const popularity::Popularity a = placement_drill::ZipfRows(rng, 16, 1.0, kTotal),
                               b = placement_drill::ZipfRows(rng, 16, 1.0, kTotal);
  const Placement base = ContiguousPlacement(16, 16, 2);
  EXPECT_EQ(FillEmptySlots(base, {}, {.estimate = a, .error = popularity::kRow / 2}),
            FillEmptySlots(base, {}, {.estimate = b, .error = popularity::kRow / 2}));
  EXPECT_FALSE(FillEmptySlots(base, {}, {.estimate = a, .error = popularity::kRow / 4}) ==
               FillEmptySlots(base, {}, {.estimate = b, .error = popularity::kRow / 4}));
  // Every expert has as many replicas as every other.
  const ReplicaIndex replicas(FillEmptySlots(base, {}, {.estimate = a, .error = popularity::kRow}));
  for (int e = 0; e < 16; ++e) EXPECT_EQ(replicas.NumReplicas(e), 3);
}

// The use of hedges: nothing is known, nothing moves, and three slots still balance most loads.
TEST(AliasPlacementTest, HedgesFindWaysAround) {
  std::mt19937_64 rng(12);
  const Placement spread =
      Alias(popularity::Popularity(16, 1), {.num_devices = 16, .slots_per_device = 3, .error = popularity::kRow});
  double mean = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round)
    mean += Imbalance(spread, placement_drill::ZipfRows(rng, 16, 1.0, kTotal)) / kRounds;
  EXPECT_LE(mean, 1.65) << spread.ToString();
}

TEST(AliasPlacementTest, Edges) {
  EXPECT_EQ(Alias({5}, {.num_devices = 3, .slots_per_device = 1}).ToString(), "[0] [0] [0]");
  EXPECT_EQ(Alias({0, 0}, {.num_devices = 2, .slots_per_device = 1}).ToString(), "[0] [1]");
  EXPECT_EQ(Alias({7, 1}, {.num_devices = 2, .slots_per_device = 2}).ToString(), "[0 1] [1 0]");
  EXPECT_THAT(AliasPlacement({1, 1, 1}, {.num_devices = 1, .slots_per_device = 2}).status().message(),
              HasSubstr("1 devices of 2 slots for 3 experts"));
}

}  // namespace
}  // namespace switchyard::placement
