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
  int budget_percent = 0;  // 0: all experts of a rank are there
  const char* policy = "expected_use";
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kStatic, placement::PlacementMode::kStaticSpare, placement::PlacementMode::kCentral,
        placement::PlacementMode::kAgreed, placement::PlacementMode::kNoEstimate,
        placement::PlacementMode::kNoFinetune}) {
    for (const int world : {1, 2, 4}) {
      for (const bool delays : {false, true}) cases.push_back({mode, world, delays, test::Backend::kLocal, 1 + delays});
    }
    cases.push_back({mode, 3, true, test::Backend::kSocket, 1});
    for (const int world : {1, 2, 4}) {
      cases.push_back({mode, world, false, test::Backend::kLocal, 1, 50});
      cases.push_back({mode, world, true, test::Backend::kLocal, 1, 25});
      cases.push_back({mode, world, true, test::Backend::kLocal, 1, 25, "lru"});
    }
    cases.push_back({mode, 3, true, test::Backend::kSocket, 1, 50});
  }
  return cases;
}

class PerStepBalancerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Modes, PerStepBalancerTest, testing::ValuesIn(Cases()), [](const auto& i) {
  std::string name = absl::StrCat(placement::NameOf(i.param.mode), "_", i.param.world, "ranks_",
                                  test::BackendName(i.param.backend), i.param.delays ? "_delays" : "");
  if (i.param.budget_percent > 0) absl::StrAppend(&name, "_", i.param.budget_percent, "percent_", i.param.policy);
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
                                              .micro_batches = c.micro_batches,
                                              .budget_percent = c.budget_percent,
                                              .policy = c.policy});
  for (const absl::Status& status : result.statuses) ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(result.residual == group.Expected());
  int64_t copies = 0, computed = 0;
  for (size_t rank = 0; rank < result.statuses.size(); ++rank) {
    for (int layer = 0; layer < test::kPlacedLayers; ++layer) {
      const placement::Placement& placement = result.placements[rank][static_cast<size_t>(layer)];
      EXPECT_TRUE(placement::CheckPlacement(placement).ok()) << placement.ToString();
      EXPECT_EQ(placement, result.placements[0][static_cast<size_t>(layer)]);
    }
    copies += result.counters[rank].copies[static_cast<size_t>(CopyReason::kDemand)] +
              result.counters[rank].copies[static_cast<size_t>(CopyReason::kPrefetch)];
    computed += result.stats[rank].expert_rows;
    EXPECT_EQ(result.counters[rank].failed, 0);
    EXPECT_GT(result.stats[rank].decide_seconds, 0);
  }
  EXPECT_EQ(computed, kPlacedSteps * test::kPlacedLayers * test::kPlacedRows * kPlacedTopK);
  // (With two ranks the spare slots that agreed begins with are enough.)
  const bool moves = c.mode != placement::PlacementMode::kStatic && c.mode != placement::PlacementMode::kStaticSpare &&
                     c.world > (c.mode == placement::PlacementMode::kAgreed ? 2 : 1);
  if (c.budget_percent > 0) {
    EXPECT_EQ(copies, 0) << "a budget's policy copies, not the placement";
    for (const ExpertStoreCounters& store : result.stores) {
      EXPECT_GT(store.misses + store.late + store.hits, 0);
      EXPECT_EQ(store.failed, 0);
    }
  } else {
    EXPECT_EQ(copies > 0, moves) << copies;
  }
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

// What ranks expect of the next layer is summed, and what is expected of this rank's experts is passed on: all of it
// of an expert that is here alone, half of one that is here and there.
TEST(PerStepBalancerTest, ReportsWhatItsExpertsWillGet) {
  struct Case {
    int spare;
    popularity::Popularity here[2];  // by rank, in rows
  };
  for (const Case& c : {Case{0, {{16, 2, 0, 0}, {0, 0, 0, 8}}}, Case{2, {{8, 1, 0, 4}, {8, 1, 0, 4}}}}) {
    auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
    const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
      PerStepBalancerOptions options;
      options.shape = {.residents =
                           std::vector<placement::Placement>(2, placement::ContiguousPlacement(4, 2, c.spare))};
      options.rank = comm->rank();
      ASSIGN_OR_RETURN(auto balancer, PerStepBalancer::Create(std::move(options)));
      const popularity::Popularity mine = {8 * popularity::kRow, 1 * popularity::kRow, 0, 4 * popularity::kRow};
      const placement::LayerEstimate estimate = {.layer = 1, .popularity = mine};
      MoeStats stats;
      ThreadPool pool(1, false);
      const Stream stream = Stream::OnCpu(&pool);
      ASSIGN_OR_RETURN(
          const LayerPlacement placement,
          balancer->Place({.stream = &stream, .comm = comm, .deadline = test::Soon(), .stats = &stats},
                          {.topk_on_host = TensorView(nullptr, DType::kI32, {0, 2}), .estimates = {&estimate, 1}}));
      EXPECT_EQ(placement.estimates.size(), 1u);
      EXPECT_EQ(placement.estimates[0].layer, 1);
      for (size_t expert = 0; expert < 4; ++expert) {
        EXPECT_EQ(placement.estimates[0].popularity[expert], c.here[comm->rank()][expert] * popularity::kRow)
            << "rank " << comm->rank() << ", expert " << expert << ", " << c.spare << " spare slots";
      }
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
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
      {.shape = {.mode = placement::PlacementMode::kCentral, .residents = {placement::ContiguousPlacement(4, 2, 1)}}});
  ASSERT_TRUE(balancer.ok()) << balancer.status();
  EXPECT_TRUE((*balancer)->BeginStep({.step = 1}).ok());
  const absl::Status status = (*balancer)->BeginStep({.step = 2, .decides = false});
  EXPECT_EQ(status.message(), "plan: step 2 decides nothing, but under --placement=central experts have no homes");
}

TEST(PerStepBalancerTest, WhatChangesAnswersOrLooksAheadIsForBenchmarks) {
  for (const placement::PlacementMode mode : {placement::PlacementMode::kOracle, placement::PlacementMode::kIdeal}) {
    const absl::Status status =
        PerStepBalancer::Create({.shape = {.mode = mode, .residents = {placement::ContiguousPlacement(4, 2, 1)}}})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("benchmarks"));
  }
}

}  // namespace
}  // namespace switchyard::moe
