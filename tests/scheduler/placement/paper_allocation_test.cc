#include "scheduler/placement/lina/paper_allocation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/route/replica_index.h"
#include "scheduler/placement/route/split.h"
#include "tests/scheduler/placement/drill.h"

namespace switchyard::placement {
namespace {

using testing::HasSubstr;

std::string Allocate(const std::vector<int64_t>& estimate, int num_devices, int slots_per_device) {
  const absl::StatusOr<Placement> placement = AllocateAsPaper(estimate, num_devices, slots_per_device);
  EXPECT_TRUE(placement.ok()) << placement.status();
  EXPECT_TRUE(CheckPlacement(*placement).ok()) << placement->ToString();
  return placement->ToString();
}

TEST(PaperAllocationTest, PopularExpertsGetWholeDevices) {
  // n = 2.0, 1.0, 0.5, 0.5: two devices, one, and one for the two halves.
  EXPECT_EQ(Allocate({20, 10, 5, 5}, 4, 4), "[0 - - -] [0 - - -] [1 - - -] [2 3 - -]");
}

TEST(PaperAllocationTest, RemainderGoesToTheLargestFraction) {
  // n = 2.4, 1.6, 0.5, 0.5: one device is left, and 0.6 is more than 0.4.
  EXPECT_EQ(Allocate({24, 16, 5, 5}, 5, 2), "[0 -] [0 -] [1 -] [2 3] [1 -]");
  // n = 1.4, 1.6, 0.6, 0.3, 1.1: two are left.
  EXPECT_EQ(Allocate({14, 16, 6, 3, 11}, 5, 4), "[1 - - -] [0 - - -] [4 - - -] [2 3 - -] [1 - - -]");
}

TEST(PaperAllocationTest, EqualRemaindersGoToTheSmallerId) {
  // n = 1.5, 2.5: one device is left.
  EXPECT_EQ(Allocate({15, 25}, 4, 2), "[1 -] [1 -] [0 -] [0 -]");
}

TEST(PaperAllocationTest, FractionsBelowOneGetNoRemainder) {
  // n = 1.6, 1.4, 0.7, 0.3: the free device goes to expert 0, though expert 2 has the larger fraction.
  EXPECT_EQ(Allocate({16, 14, 7, 3}, 4, 2), "[0 -] [1 -] [2 3] [0 -]");
}

TEST(PaperAllocationTest, FirstFitDecreasingTakesTheFirstBinWithRoom) {
  // n of 8 devices: 3.2, 0.7, 0.6, 0.4, 0.3, 0.2, 0.2, 2.4.  Bins: {0.7, 0.3}, {0.6, 0.4}, {0.2, 0.2}.
  EXPECT_EQ(Allocate({32, 7, 6, 4, 3, 2, 2, 24}, 8, 4),
            "[0 - - -] [0 - - -] [0 - - -] [7 - - -] [7 - - -] [1 4 - -] [2 3 - -] [5 6 - -]");
}

TEST(PaperAllocationTest, NoMoreThanFourInABin) {
  // Four tiny ones fill a bin; those that nobody chooses go where the least is, beyond the limit.
  EXPECT_EQ(
      Allocate({100, 96, 1, 1, 1, 1, 0, 0}, 8, 8),
      "[0 - - - - - - -] [0 - - - - - - -] [0 - - - - - - -] [0 - - - - - - -] [1 - - - - - - -] [1 - - - - - - -] "
      "[1 - - - - - - -] [2 3 4 5 6 7 - -]");
  // Two bins for five tiny experts, but one device is left: the fifth goes where the least is.
  EXPECT_EQ(Allocate({60, 1, 1, 1, 1, 1}, 6, 5),
            "[0 - - - -] [0 - - - -] [0 - - - -] [0 - - - -] [0 - - - -] [1 2 3 4 5]");
}

TEST(PaperAllocationTest, UnlistedExpertsSpreadOverFreeDevices) {
  // n = 2.0, 0.4, 0.4, 0.4 ...: 0 has two devices, a bin of two and one of one; experts 4 .. 7 share the devices left.
  EXPECT_EQ(Allocate({40, 40, 0, 0, 0, 0}, 6, 4), "[0 2 - -] [0 3 - -] [0 4 - -] [1 5 - -] [1 - - -] [1 - - -]");
  EXPECT_EQ(Allocate({3, 0, 0, 3}, 2, 2), "[0 1] [3 2]");
}

TEST(PaperAllocationTest, SlotsAreAHardCap) {
  EXPECT_EQ(Allocate({100, 1, 1, 1}, 4, 1), "[0] [1] [2] [3]");
  EXPECT_THAT(AllocateAsPaper({1, 1, 1}, 1, 2).status().message(), HasSubstr("1 devices of 2 slots for 3 experts"));
}

TEST(PaperAllocationTest, EveryExpertIsHostedWhateverTheEstimate) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 3000; ++round) {
    const int num_devices = 1 + static_cast<int>(rng() % 20), slots = 1 + static_cast<int>(rng() % 9);
    const int num_experts = 1 + static_cast<int>(rng() % (num_devices * slots));
    std::vector<int64_t> estimate(num_experts);
    for (int64_t& e : estimate) e = rng() % 3 == 0 ? 0 : static_cast<int64_t>((rng() % 1000) * (rng() % 1000)) << 30;
    const absl::StatusOr<Placement> placement = AllocateAsPaper(estimate, num_devices, slots);
    ASSERT_TRUE(placement.ok());
    ASSERT_TRUE(CheckPlacement(*placement).ok()) << placement->ToString();
    ASSERT_EQ(placement->num_devices(), num_devices);
    for (const auto& device : placement->slots) ASSERT_EQ(static_cast<int>(device.size()), slots);
    const ReplicaIndex replicas(*placement);
    const std::vector<int64_t> rows = PlannedRows(replicas, estimate);
    for (int e = 0; e < num_experts; ++e) {
      int64_t planned = 0;
      for (int32_t r = replicas.FirstReplica(e); r < replicas.EndReplica(e); ++r) planned += rows[r];
      EXPECT_EQ(planned, estimate[e]);
    }
    EXPECT_EQ(*AllocateAsPaper(estimate, num_devices, slots), *placement);
  }
}

}  // namespace
}  // namespace switchyard::placement
