#include "tests/lab/placement/eplb.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Flat(const placement::Placement& placement) {
  std::vector<int32_t> flat;
  for (const auto& device : placement.slots) flat.insert(flat.end(), device.begin(), device.end());
  return flat;
}

// The example of deepseek-ai/EPLB's README: 12 experts in 4 groups, 16 replicas, 2 nodes of 4 devices.
TEST(EplbTest, ReadmeExample) {
  const EplbShape shape{.num_replicas = 16, .num_groups = 4, .num_nodes = 2, .num_devices = 8};
  const auto first = EplbPlacement({90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86}, shape);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(Flat(*first), ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  const auto second = EplbPlacement({20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}, shape);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(Flat(*second), ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

// Three nodes cannot share four groups: the same as one group on one node, whatever the nodes.
TEST(EplbTest, GlobalPolicyWhereNodesDoNotShareTheGroups) {
  const std::vector<int64_t> load{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const auto global = EplbPlacement(load, {.num_replicas = 18, .num_groups = 4, .num_nodes = 3, .num_devices = 6});
  const auto flat = EplbPlacement(load, {.num_replicas = 18, .num_groups = 1, .num_nodes = 1, .num_devices = 6});
  ASSERT_TRUE(global.ok() && flat.ok());
  EXPECT_EQ(*global, *flat);
  const auto hierarchical = EplbPlacement(load, {18, 3, 3, 6});
  ASSERT_TRUE(hierarchical.ok());
  EXPECT_FALSE(*hierarchical == *flat);
}

// The hot expert, of 8 beside 1 and 1, has four of six replicas.  By hand.
TEST(EplbTest, ReplicasByLargestLoadPerReplica) {
  const auto placement = EplbPlacement({1, 8, 1}, {.num_replicas = 6, .num_devices = 2});
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->ToString(), "[1 1 0] [1 1 2]");
  EXPECT_EQ(WithoutDuplicates(*placement).ToString(), "[1 - 0] [1 - 2]");
  EXPECT_FALSE(placement::CheckPlacement(*placement).ok());
  EXPECT_TRUE(placement::CheckPlacement(WithoutDuplicates(*placement)).ok());
}

TEST(EplbTest, ShapesThatDoNotDivideAreNamed) {
  const std::vector<int64_t> load(12, 1);
  const auto refusal = [&](EplbShape shape) { return std::string(EplbPlacement(load, shape).status().message()); };
  EXPECT_THAT(refusal({11, 1, 1, 1}), HasSubstr("replicas=11 must be at least E=12"));
  EXPECT_THAT(refusal({14, 1, 1, 4}), HasSubstr("replicas=14 must be a multiple of devices=4"));
  EXPECT_THAT(refusal({16, 1, 3, 4}), HasSubstr("devices=4 must be a multiple of nodes=3"));
  EXPECT_THAT(refusal({16, 5, 1, 4}), HasSubstr("E=12 must be a multiple of groups=5"));
  EXPECT_THAT(refusal({16, 0, 1, 4}), HasSubstr("groups=0"));
  EXPECT_FALSE(EplbPlacement({}, {16, 1, 1, 4}).ok());
}

}  // namespace
}  // namespace switchyard
