#include "scheduler/placement/placement.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PlacementTest, ContiguousWithSpareSlots) {
  EXPECT_EQ(ContiguousPlacement(5, 2, 1).ToString(), "[0 1 2 -] [3 4 - -]");
  EXPECT_EQ(ContiguousPlacement(2, 3, 0).ToString(), "[0] [1] [-]");  // a device without experts
  EXPECT_TRUE(CheckPlacement(ContiguousPlacement(64, 16, 2)).ok());
}

TEST(PlacementTest, BreachesAreNamed) {
  EXPECT_THAT(CheckPlacement({.num_experts = 3, .slots = {{0, 1}, {1, kEmptySlot}}}).message(),
              HasSubstr("no device holds expert 2"));
  EXPECT_THAT(CheckPlacement({.num_experts = 1, .slots = {{0, 0}}}).message(),
              HasSubstr("device 0 holds expert 0 twice"));
  EXPECT_THAT(CheckPlacement({.num_experts = 1, .slots = {{0}, {1}}}).message(), HasSubstr("expert 1, outside [0, 1)"));
}

TEST(PlacementTest, DevicesOfAnExpert) {
  const Placement placement{.num_experts = 2, .slots = {{0}, {1, 0}, {kEmptySlot}}};
  EXPECT_THAT(placement.DevicesOf(0), ElementsAre(0, 1));
  EXPECT_THAT(placement.DevicesOf(1), ElementsAre(1));
  EXPECT_FALSE(placement.Holds(2, 0));
}

TEST(PlacementTest, ChangesAreWhatHasToBeCopied) {
  const Placement from{.num_experts = 3, .slots = {{0, 1}, {2, kEmptySlot}}};
  const Placement to{.num_experts = 3, .slots = {{0, kEmptySlot}, {1, 2}}};
  EXPECT_THAT(ChangesBetween(from, to),
              ElementsAre(SlotChange{0, 1, kEmptySlot}, SlotChange{1, 0, 1}, SlotChange{1, 1, 2}));
  // Expert 2 stays on device 1: relabelled, it stays in its slot, too.
  const Placement kept = KeepSlots(from, to);
  EXPECT_EQ(kept.ToString(), "[0 -] [2 1]");
  EXPECT_THAT(ChangesBetween(from, kept), ElementsAre(SlotChange{0, 1, kEmptySlot}, SlotChange{1, 1, 1}));
  EXPECT_THAT(ChangesBetween(kept, KeepSlots(kept, kept)), IsEmpty());
}

}  // namespace
}  // namespace switchyard::placement
