// Where an exchange's messages are, and what no plan is made for.
#include "workers/moe/dispatch/dispatch_plan.h"

#include <vector>

#include "gtest/gtest.h"
#include "workers/ops/core/row_blocks.h"

namespace switchyard::moe {
namespace {

TEST(RowBlocksTest, BlocksAreAlignedApartAndTheSameForBothSides) {
  for (const int64_t row_bytes : {2, 6, 16, 30, 48, 4096}) {
    for (const int ranks : {1, 2, 5, ops::kMaxExchangeRanks}) {
      std::vector<ops::RowBlockSize> sizes;
      for (int r = 0; r < ranks; ++r) sizes.push_back({.rows = r % 4, .pairs = r % 4 * (1 + r % 3)});
      ops::RowBlocks of[2];
      for (const int rank : {0, ranks - 1}) {
        ops::RowBlocks& blocks = of[rank == 0 ? 0 : 1];
        ASSERT_TRUE(ops::LayOutRowBlocks(rank, ranks, row_bytes, sizes.data(), &blocks));
        int64_t row = 0, pairs = 0;
        for (int r = 0; r < ranks; ++r) {
          const ops::RowBlock& block = blocks.of[r];
          EXPECT_GE(block.head_row, row);
          EXPECT_EQ(block.head_row * row_bytes % 16 + block.first_row * row_bytes % 16, 0);
          const int64_t head = r == rank || block.max_pairs == 0 ? 0 : 8 + 8 * block.max_pairs;
          EXPECT_GE((block.first_row - block.head_row) * row_bytes, head);
          EXPECT_LT((block.first_row - block.head_row) * row_bytes, head + row_bytes + 16 * row_bytes);
          row = block.first_row + block.max_rows;
          pairs += block.max_pairs;
        }
        EXPECT_GE(blocks.num_rows, row);
        EXPECT_EQ(blocks.num_pairs, pairs);
        EXPECT_EQ(blocks.of[rank].pair_begin, 0);
      }
      for (int r = 1; r + 1 < ranks; ++r) {  // the same size wherever it lies
        EXPECT_EQ(of[0].of[r].first_row - of[0].of[r].head_row, of[1].of[r].first_row - of[1].of[r].head_row);
      }
    }
  }
  ops::RowBlocks blocks;
  const std::vector<ops::RowBlockSize> many(ops::kMaxExchangeRanks + 1), large(2, {.rows = 1 << 30, .pairs = 1 << 30});
  EXPECT_FALSE(ops::LayOutRowBlocks(0, ops::kMaxExchangeRanks + 1, 64, many.data(), &blocks));
  EXPECT_FALSE(ops::LayOutRowBlocks(0, 2, 64, large.data(), &blocks));
}

TEST(DispatchPlanTest, SaysWhatDoesNotFit) {
  const ExpertLayout layout = ExpertLayout::Contiguous(4, 2);
  const DispatchShape shape{&layout, 0, 5, 2, 64};
  EXPECT_EQ(BoundedPlan(shape, 4).status().message(), "exchange: 5 rows where max_rows is 4, the same on all ranks");
  EXPECT_TRUE(BoundedPlan(shape, 5).ok());
  const std::vector<int32_t> sent = {3, 4, 2, 4};
  EXPECT_TRUE(ExactPlan(shape, sent, {3, 4, 7, 14}).ok());
  EXPECT_EQ(ExactPlan(shape, sent, {3, 4, 7, 15}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ExactPlan(shape, sent, {3, 4, 7, 6}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ExactPlan(shape, sent, {3, 4, -1, 0}).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace switchyard::moe
