// Groups of ranks whose layers go where decisions say: the bits of one rank with all experts in tables, in every mode,
// over ranks, delays and expert budgets; and that ranks agree.
#include "workers/moe/placement/per_step_balancer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/moe/decided_group.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::Backend;
using test::BackendName;
using test::DecidedGroup;
using test::GroupResult;
using test::kPlacedLayers;
using test::kPlacedRows;
using test::kPlacedSteps;
using test::kPlacedTopK;
using test::RowsOf;
using testing::HasSubstr;

struct Case {
  placement::PlacementMode mode;
  int world;
  bool delays;
  test::Backend backend;
  int micro_batches;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kStatic, placement::PlacementMode::kStaticSpare, placement::PlacementMode::kLina,
        placement::PlacementMode::kAgreed, placement::PlacementMode::kNoEstimate,
        placement::PlacementMode::kNoFinetune}) {
    for (const int world : {1, 2, 4}) {
      for (const bool delays : {false, true}) cases.push_back({mode, world, delays, test::Backend::kLocal, 1 + delays});
    }
    cases.push_back({mode, 3, true, test::Backend::kSocket, 1});
  }
  return cases;
}

class PerStepBalancerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Modes, PerStepBalancerTest, testing::ValuesIn(Cases()), [](const auto& i) {
  std::string name = absl::StrCat(placement::NameOf(i.param.mode), "_", i.param.world, "ranks_",
                                  test::BackendName(i.param.backend), i.param.delays ? "_delays" : "");
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

TEST_P(PerStepBalancerTest, TheBitsOfOneRank) {
  const Case& c = GetParam();
  const test::DecidedGroup group;
  const test::GroupResult result = group.Run({.backend = c.backend,
                                              .mode = c.mode,
                                              .rank_rows = test::RowsOf(c.world),
                                              .delays = c.delays,
                                              .micro_batches = c.micro_batches});
  for (const absl::Status& status : result.statuses) ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(result.residual == group.Expected());
  int64_t copies = 0, prefetched = 0, computed = 0;
  for (size_t rank = 0; rank < result.statuses.size(); ++rank) {
    for (int layer = 0; layer < test::kPlacedLayers; ++layer) {
      const placement::Placement& placement = result.placements[rank][static_cast<size_t>(layer)];
      EXPECT_TRUE(placement::CheckPlacement(placement).ok()) << placement.ToString();
      EXPECT_EQ(placement, result.placements[0][static_cast<size_t>(layer)]);
    }
    copies += result.counters[rank].copies[static_cast<size_t>(CopyReason::kDemand)] +
              result.counters[rank].copies[static_cast<size_t>(CopyReason::kPrefetch)];
    prefetched += result.counters[rank].copies[static_cast<size_t>(CopyReason::kPrefetch)];
    computed += result.stats[rank].expert_rows;
    EXPECT_EQ(result.counters[rank].failed, 0);
    EXPECT_GT(result.stats[rank].decide_seconds, 0);
  }
  EXPECT_EQ(computed, kPlacedSteps * test::kPlacedLayers * test::kPlacedRows * kPlacedTopK);
  // (With two ranks the spare slots that agreed begins with are enough.)
  const bool moves = c.mode != placement::PlacementMode::kStatic && c.mode != placement::PlacementMode::kStaticSpare &&
                     c.world > (c.mode == placement::PlacementMode::kAgreed ? 2 : 1);
  EXPECT_EQ(copies > 0, moves) << copies;
  EXPECT_EQ(prefetched > 0, moves && placement::UsesEstimates(c.mode)) << prefetched;
  EXPECT_EQ(result.stats[0].fine_tuned_layers > 0, moves && c.mode != placement::PlacementMode::kNoFinetune);
  const auto put_by = [&](placement::SlotOrigin origin) { return result.origins[0][static_cast<size_t>(origin)]; };
  for (const auto& origins : result.origins) EXPECT_EQ(origins, result.origins[0]) << "ranks know alike";
  EXPECT_EQ(put_by(placement::SlotOrigin::kEstimate) + put_by(placement::SlotOrigin::kGate) > 0, moves);
  if (c.mode == placement::PlacementMode::kNoEstimate) {
    EXPECT_EQ(put_by(placement::SlotOrigin::kEstimate), 0);
  }
  if (c.mode == placement::PlacementMode::kNoFinetune) {
    EXPECT_EQ(put_by(placement::SlotOrigin::kGate), 0);
  }
}

// Rows of a step that decides nothing go to their experts' homes, with nothing gathered; the next decision goes on
// where the last one ended.
TEST(PerStepBalancerTest, StepsThatDecideNothing) {
  const test::DecidedGroup group;
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kAuto, placement::PlacementMode::kAgreed, placement::PlacementMode::kStaticSpare}) {
    test::GroupRun run = {.mode = mode, .rank_rows = test::RowsOf(4)};
    const test::GroupResult all = group.Run(run);
    run.every_other_step = true;
    const test::GroupResult half = group.Run(run);
    for (const absl::Status& status : half.statuses) ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(half.residual == group.Expected());
    EXPECT_EQ(all.gathers[0], kPlacedSteps * kPlacedLayers);
    EXPECT_EQ(half.gathers[0], kPlacedSteps * kPlacedLayers / 2);
    // Their rows are where the contiguous placement has them, which is not where the others' are.
    EXPECT_NE(half.stats[0].expert_rows, all.stats[0].expert_rows);
  }
}

TEST(PerStepBalancerTest, WithoutHomesEveryStepDecides) {
  auto balancer = PerStepBalancer::Create(
      {.shape = {.mode = placement::PlacementMode::kLina, .residents = {placement::ContiguousPlacement(4, 2, 1)}}});
  ASSERT_TRUE(balancer.ok()) << balancer.status();
  EXPECT_TRUE((*balancer)->BeginStep({.step = 1}).ok());
  const absl::Status status = (*balancer)->BeginStep({.step = 2, .decides = false});
  EXPECT_EQ(status.message(), "plan: step 2 decides nothing, but under --placement=lina experts have no homes");
  EXPECT_EQ((*balancer)->BeginStep({.step = 3, .costs = {.row_ps = -1}}).message(),
            "plan: step 3 has negative costs: copy_ps=0 weights_ps=0 row_ps=-1");
}

TEST(PerStepBalancerTest, WhatChangesAnswersIsForBenchmarks) {
  const absl::Status status =
      PerStepBalancer::Create(
          {.shape = {.mode = placement::PlacementMode::kIdeal, .residents = {placement::ContiguousPlacement(4, 2, 1)}}})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("benchmarks"));
}

}  // namespace
}  // namespace switchyard::moe
