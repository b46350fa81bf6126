// The plan of sharded dense state: each element is on one rank, in whole blocks of the norm, evenly.
#include "workers/train/parameters/dense_shards.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "workers/ops/optimizer/adamw.h"

namespace switchyard::train {
namespace {

using Ranges = std::vector<ElementRange>;

// As a model has them: vectors, matrices of several sizes, packed ones of three parts, one that is frozen.
std::vector<DenseBlock> Blocks() {
  std::vector<DenseBlock> blocks = {{.ranges = {{0, 5'000'000}}}};
  for (int layer = 0; layer < 7; ++layer) {
    blocks.push_back({.ranges = {{0, 1000}}});
    blocks.push_back({.ranges = {{0, 70'000}, {70'000, 12'345}, {82'345, 12'345}}});
    blocks.push_back({.ranges = {{0, 70'001}}, .states = 1});
    blocks.push_back({.ranges = {{0, 1}}});
  }
  return blocks;
}

// Whether a border is one of a norm's block.
bool IsBorder(const Ranges& ranges, int64_t border) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const ElementRange& range) {
    return border == range.end() ||
           (border >= range.begin && border < range.end() && (border - range.begin) % ops::kNormBlock == 0);
  });
}

TEST(DenseShardsTest, CutsEachBlockAtTheNormsBlocks) {
  const std::vector<DenseBlock> blocks = Blocks();
  for (const int world : {1, 2, 3, 4, 8, 1000}) {
    const std::vector<DenseShard> shards = PlanShards(blocks, world);
    ASSERT_EQ(shards.size(), blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      const std::vector<int64_t>& borders = shards[b].borders;
      ASSERT_EQ(borders.size(), static_cast<size_t>(world) + 1);
      EXPECT_EQ(borders.front(), 0);
      EXPECT_EQ(borders.back(), blocks[b].ranges.back().end());
      EXPECT_TRUE(std::is_sorted(borders.begin(), borders.end()));
      for (const int64_t border : borders)
        EXPECT_TRUE(IsBorder(blocks[b].ranges, border)) << border << " of block " << b;
      EXPECT_GE(shards[b].writer, 0);
      EXPECT_LT(shards[b].writer, world);
    }
  }
}

TEST(DenseShardsTest, RanksHaveAndWriteAboutAsMuch) {
  const std::vector<DenseBlock> blocks = Blocks();
  const auto numbers = [](const DenseBlock& block) { return block.ranges.back().end() * block.states; };
  const int64_t all = std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                                      [&](int64_t sum, const DenseBlock& block) { return sum + numbers(block); });
  for (const int world : {2, 3, 4, 8}) {
    std::vector<int64_t> kept(static_cast<size_t>(world), 0), written(static_cast<size_t>(world), 0);
    const std::vector<DenseShard> shards = PlanShards(blocks, world);
    for (size_t b = 0; b < blocks.size(); ++b) {
      const std::vector<int64_t>& borders = shards[b].borders;
      for (size_t r = 0; r < kept.size(); ++r) kept[r] += (borders[r + 1] - borders[r]) * blocks[b].states;
      written[static_cast<size_t>(shards[b].writer)] += numbers(blocks[b]);
    }
    for (const int64_t count : kept) {
      EXPECT_NEAR(static_cast<double>(count), static_cast<double>(all) / world, 3 * ops::kNormBlock) << world;
    }
    // Of the largest one every rank has a part: no rank alone gets the others' gradients.
    for (size_t r = 0; r < kept.size(); ++r) {
      const int64_t part = shards[0].borders[r + 1] - shards[0].borders[r];
      EXPECT_NEAR(static_cast<double>(part), 5e6 / world, ops::kNormBlock);
    }
    // Whole tensors: no rank has more than the largest and an even share.
    EXPECT_LE(*std::max_element(written.begin(), written.end()), numbers(blocks[0]) + all / world);
    EXPECT_EQ(std::accumulate(written.begin(), written.end(), int64_t{0}), all);
  }
}

TEST(DenseShardsTest, PiecesCoverEachRanksPartOnce) {
  const std::vector<DenseShard> shards = PlanShards(Blocks(), 3);
  for (const DenseShard& shard : shards) {
    for (const int64_t piece : {int64_t{1} << 40, int64_t{100'000}, int64_t{999}}) {
      for (int r = 0; r < 3; ++r) {
        int64_t next = shard.borders[static_cast<size_t>(r)];
        for (int64_t begin = 0; begin < shard.borders.back(); begin += piece) {
          const int64_t count = std::min(piece, shard.borders.back() - begin);
          const ElementRange run = RunOfPiece(shard.borders, r, {begin, count});
          EXPECT_EQ(run.begin, next);
          EXPECT_LE(run.count, count);
          next = run.end();
        }
        EXPECT_EQ(next, shard.borders[static_cast<size_t>(r) + 1]);
      }
    }
  }
}

TEST(DenseShardsTest, Intersections) {
  EXPECT_EQ(Intersect({0, 10}, {5, 10}), (ElementRange{5, 5}));
  EXPECT_EQ(Intersect({5, 10}, {0, 5}).count, 0);
  EXPECT_EQ(Intersect({0, 3}, {7, 2}).count, 0);
}

}  // namespace
}  // namespace switchyard::train
