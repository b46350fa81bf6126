// Checks of a group's placement as it arrives in a message.
#include "scheduler/placement/background/group_placement.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using testing::HasSubstr;

constexpr PlacementBounds kBounds = {.layers = 2, .experts = 4, .devices = 2, .slots = 3};

GroupPlacement Good() {
  GroupPlacement placement;
  placement.epoch = 7;
  placement.residents.assign(2, ContiguousPlacement(4, 2, 1));
  placement.costs = {.copy_ps = 1, .row_ps = 2, .layer_ps = 3};
  return placement;
}

std::string Problem(const GroupPlacement& placement) {
  const absl::Status status = CheckGroupPlacement(placement, kBounds);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST(GroupPlacement, EveryShapeThatIsNotTheGroupsIsRefused) {
  EXPECT_EQ(Problem(Good()), "");
  EXPECT_EQ(Problem(GroupPlacement{}), "");
  GroupPlacement bad = Good();
  bad.epoch = -1;
  EXPECT_THAT(Problem(bad), HasSubstr("epoch -1"));
  bad = Good();
  bad.residents.pop_back();
  EXPECT_THAT(Problem(bad), HasSubstr("1 layers, the model has 2"));
  bad = Good();
  bad.residents[1].num_experts = 3;
  EXPECT_THAT(Problem(bad), HasSubstr("layer 1 has 3 experts on 2 devices, not 4 on 2"));
  bad = Good();
  bad.residents[0].slots.pop_back();
  EXPECT_THAT(Problem(bad), HasSubstr("layer 0 has 4 experts on 1 devices"));
  bad = Good();
  bad.residents[0].slots[1].push_back(kEmptySlot);
  EXPECT_THAT(Problem(bad), HasSubstr("layer 0 has 4 slots a device, not 3"));
  bad = Good();
  bad.residents[1].slots[0][0] = 99;
  EXPECT_THAT(Problem(bad), HasSubstr("layer 1: placement: device 0 holds expert 99"));
  bad = Good();
  bad.residents[1].slots[0][0] = kEmptySlot;
  EXPECT_THAT(Problem(bad), HasSubstr("no device holds expert 0"));
  bad = Good();
  bad.costs.row_ps = -2;
  EXPECT_THAT(Problem(bad), HasSubstr("row_ps=-2"));
}

TEST(GroupPlacement, MovesOutOfBoundsAreRefused) {
  Migration migration;
  migration.epoch = 1;
  migration.arrivals = {{1, 3, 1, 2}};
  migration.departures = {{0, 0, 0, 0}};
  EXPECT_TRUE(CheckMigration(migration, kBounds).ok()) << CheckMigration(migration, kBounds);
  const auto refused = [&](ResidencyMove arrival) {
    Migration bad = migration;
    bad.arrivals.push_back(arrival);
    return absl::IsInvalidArgument(CheckMigration(bad, kBounds));
  };
  EXPECT_TRUE(refused({2, 0, 0, 0}));
  EXPECT_TRUE(refused({-1, 0, 0, 0}));
  EXPECT_TRUE(refused({0, 4, 0, 0}));
  EXPECT_TRUE(refused({0, 0, 2, 0}));
  EXPECT_TRUE(refused({0, 0, 0, 3}));
  EXPECT_TRUE(refused({0, 0, 0, -1}));
  migration.departures[0].expert = 5;
  EXPECT_THAT(std::string(CheckMigration(migration, kBounds).message()),
              HasSubstr("departure of layer 0, expert 5, device 0, slot 0: limits are 2 layers"));
  migration.departures.clear();
  migration.epoch = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckMigration(migration, kBounds)));
}

}  // namespace
}  // namespace switchyard::placement
