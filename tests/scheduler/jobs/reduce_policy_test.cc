#include "scheduler/jobs/reduce_policy.h"

#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

// Full packs experts, and preempt goes over other connections.
TEST(ReducePolicyTest, EveryModeIsAnotherButFullAndPreempt) {
  std::set<std::tuple<ReduceGrouping, int64_t, ReduceRule, bool, bool>> seen;
  for (int i = 0; i < kNumCommModes; ++i) {
    const auto mode = static_cast<CommMode>(i);
    const absl::StatusOr<ReducePolicy> policy = ReducePolicyOf({.mode = mode});
    ASSERT_TRUE(policy.ok()) << CommModeName(mode);
    EXPECT_EQ(seen.emplace(policy->grouping, policy->op_bytes, policy->rule, policy->ticketed, policy->cuts_all_to_alls)
                  .second,
              mode != CommMode::kFull && mode != CommMode::kPreempt)
        << CommModeName(mode);
  }
}

TEST(ReducePolicyTest, PiecesAreAsLargeAsTheSpecSays) {
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kPartition, .piece_bytes = 4096})->op_bytes, 4096);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kPreempt, .piece_bytes = 4096})->op_bytes, 4096);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kPreempt})->op_bytes, 30 << 20);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kPartition, .piece_bytes = kPiecesByLink})->op_bytes, 30 << 20);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kFair})->op_bytes, 25 << 20);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kFixed, .piece_bytes = 6000})->op_bytes, 5000);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kFair, .piece_bytes = 8})->op_bytes, 8);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kArLast, .piece_bytes = 6000})->op_bytes, 25 << 20);
  EXPECT_EQ(ReducePolicyOf({.mode = CommMode::kPartition, .piece_bytes = 7}).status().message(),
            "communication: pieces of 7 bytes have no room for an element of 8");
}

TEST(ReducePolicyTest, PreemptIsPartitionOnConnectionsThatLetAllToAllsGoFirst) {
  for (int i = 0; i < kNumCommModes; ++i) {
    const auto mode = static_cast<CommMode>(i);
    EXPECT_EQ(OvertakesOnTheSocket(mode), mode == CommMode::kPreempt) << CommModeName(mode);
  }
  const ReducePolicy policy = *ReducePolicyOf({.mode = CommMode::kPreempt, .piece_bytes = 4096});
  const ReducePolicy partition = *ReducePolicyOf({.mode = CommMode::kPartition, .piece_bytes = 4096});
  EXPECT_EQ(policy.rule, ReduceRule::kAfterAllToAll);
  EXPECT_EQ(policy.rule, partition.rule);
  EXPECT_EQ(policy.grouping, partition.grouping);
  EXPECT_EQ(policy.op_bytes, partition.op_bytes);
  EXPECT_FALSE(policy.ticketed);
  EXPECT_FALSE(policy.cuts_all_to_alls);
}

TEST(ReducePolicyTest, ChunksOfALayer) {
  const CommunicationSpec cuts = {.mode = CommMode::kPipelining, .piece_bytes = 1000};
  const LayerRows rows = {
      .rows = 100, .world = 4, .holders = 4, .top_k = 2, .row_bytes = 100};  // 25 rows of a rank, to 2 ranks
  EXPECT_EQ(ChunksOfLayer(cuts, rows, 64), 5);
  EXPECT_EQ(ChunksOfLayer(cuts, rows, 3), 3);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kFull, .piece_bytes = 1000}, rows, 64), 5);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPipelining, .piece_bytes = 5000}, rows, 64), 1);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPipelining, .piece_bytes = 4999}, rows, 64), 2);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPartition, .piece_bytes = 1000}, rows, 64), 1);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPreempt, .piece_bytes = 1000}, rows, 64), 1);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPipelining}, rows, 64), 1) << "pieces of 30 MiB";
  // A granularity's number counts in every mode.
  const Granularity six = {.rule = ChunkRule::kFixed, .chunks = 6};
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kPartition, .granularity = six}, rows, 64), 6);
  EXPECT_EQ(ChunksOfLayer({.mode = CommMode::kFull, .piece_bytes = 1000, .granularity = six}, rows, 64), 6);
  EXPECT_EQ(ChunksOfLayer(cuts, {.rows = 100, .world = 2, .holders = 2, .top_k = 8, .row_bytes = 100}, 64),
            5);  // each row once
  EXPECT_EQ(ChunksOfLayer(cuts, {.rows = 100, .world = 1, .holders = 1, .top_k = 2, .row_bytes = 100}, 64), 1);
  EXPECT_EQ(ChunksOfLayer(cuts, {.rows = 100, .world = 4, .holders = 2, .top_k = 2, .row_bytes = 100}, 64), 3);
  EXPECT_EQ(ChunksOfLayer(cuts, {.rows = 0, .world = 4, .holders = 4, .top_k = 2, .row_bytes = 100}, 64), 1);
}

}  // namespace
}  // namespace switchyard::jobs
