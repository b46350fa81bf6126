// Which flags of placement go together.
#include "scheduler/placement/placement_settings.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

struct Case {
  PlacementSettings settings;
  const char* problem;  // empty: none
};

TEST(PlacementSettings, WhatGoesTogether) {
  const std::vector<Case> cases = {
      {{}, ""},
      {{.mode = PlacementMode::kStaticSpare, .spare_slots = 1}, ""},
      {{.mode = PlacementMode::kAgreed, .spare_slots = 64}, ""},
      {{.mode = PlacementMode::kLina, .spare_slots = 2}, ""},
      {{.mode = PlacementMode::kNoFinetune, .spare_slots = 2}, ""},
      {{.mode = PlacementMode::kAuto, .spare_slots = 1}, ""},
      {{.mode = PlacementMode::kStatic}, ""},
      {{.mode = PlacementMode::kStatic, .spare_slots = 1}, "--spare_slots=1: --placement=static has no replicas"},
      {{.mode = PlacementMode::kAgreed}, "--placement=agreed: wants --spare_slots=1 or more"},
      {{.mode = PlacementMode::kAgreed, .spare_slots = -1}, "--spare_slots=-1: must be within [0, 64]"},
      {{.mode = PlacementMode::kAgreed, .spare_slots = 65}, "--spare_slots=65: must be within [0, 64]"},
      {{.mode = PlacementMode::kIdeal, .spare_slots = 1},
       "--placement=ideal: is for benchmarks; a server cannot choose what the gate will say"}};
  for (const Case& c : cases) {
    const absl::Status status = CheckPlacementSettings(c.settings);
    EXPECT_EQ(std::string(status.message()), c.problem);
    EXPECT_EQ(absl::IsInvalidArgument(status), *c.problem != '\0');
  }
}

TEST(PlacementSettings, NoMoreSlotsThanOtherExperts) {
  const PlacementSettings settings = {.mode = PlacementMode::kAgreed, .spare_slots = 12};
  EXPECT_TRUE(CheckSlots(settings, 16, 4).ok());
  EXPECT_TRUE(CheckSlots(settings, 16, 1).ok()) << "slots of one worker stay empty";
  EXPECT_TRUE(CheckSlots({}, 4, 4).ok());
  // 17 over 4: one has five.
  EXPECT_TRUE(CheckSlots(settings, 17, 4).ok());
  const absl::Status status = CheckSlots(settings, 17, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(
      std::string(status.message()),
      "--placement=agreed: --spare_slots=12: a worker would have so many experts of each layer beside its own, but one "
      "of 3 workers has 6 of the 17 by itself: 11 others at most");
}

TEST(PlacementSettings, ExpertsOfALayer) {
  EXPECT_EQ(ExpertsOfLayer({}, 16, 4), 4);
  EXPECT_EQ(ExpertsOfLayer({.mode = PlacementMode::kAgreed, .spare_slots = 3}, 17, 4), 8);
}

TEST(PlacementSettings, AnExpertBudgetIsForExpertsWithoutReplicas) {
  EXPECT_TRUE(CheckExpertMemory({.mode = PlacementMode::kStatic}, "25%").ok());
  EXPECT_TRUE(CheckExpertMemory({.mode = PlacementMode::kAuto}, "25%").ok());
  EXPECT_TRUE(CheckExpertMemory({.mode = PlacementMode::kAgreed, .spare_slots = 1}, "").ok());
  for (const PlacementMode mode : {PlacementMode::kStaticSpare, PlacementMode::kAgreed, PlacementMode::kAuto,
                                   PlacementMode::kLina, PlacementMode::kNoEstimate}) {
    const absl::Status status = CheckExpertMemory({.mode = mode, .spare_slots = 1}, "25%");
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(), absl::StrCat("--expert_memory=25%: excludes --placement=", NameOf(mode),
                                             " --spare_slots=1: a replica would take the room of another expert"));
  }
}

}  // namespace
}  // namespace switchyard::placement
