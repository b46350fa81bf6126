#include "scheduler/batching/block_pool.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::batching {
namespace {

std::vector<int32_t> Range(int32_t begin, int32_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

// Holds and publishes all full blocks of one prompt.
struct Holder {
  Holder(BlockPool* owner, std::vector<int32_t> prompt, int32_t block_size, PrefixRoot root = {})
      : pool(owner), tokens(std::move(prompt)), chain(std::move(root), block_size) {
    chain.Extend(tokens);
    const int32_t num_full = static_cast<int32_t>(chain.hashes().size());
    EXPECT_TRUE(pool->Allocate(num_full, &table));
    uint64_t content = 0;
    for (int32_t i = 0; i < num_full; ++i) content = pool->Publish(table[i], chain, tokens, i, content);
  }
  PrefixMatch Lookup() const { return pool->Lookup(chain, tokens, 1000); }
  void Release() { pool->Rollback(&table, 0); }

  BlockPool* pool;
  std::vector<int32_t> tokens;
  PrefixChain chain;
  std::vector<BlockId> table;
};

TEST(BlockPoolTest, AllocateTakesAllOrNothing) {
  BlockPool pool(3, 4);
  std::vector<BlockId> table;
  EXPECT_FALSE(pool.Allocate(4, &table));
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(pool.Allocate(3, &table));
  EXPECT_EQ(table, (std::vector<BlockId>{0, 1, 2}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_FALSE(pool.Allocate(1, &table));
  EXPECT_TRUE(pool.Allocate(0, &table));
  pool.Rollback(&table, 1);
  EXPECT_EQ(table, (std::vector<BlockId>{0}));
  EXPECT_EQ(pool.num_free(), 2);
  Invariants::Check(pool);
}

TEST(BlockPoolTest, SharedBlocksAreFreeWhenTheLastHolderIsGone) {
  BlockPool pool(8, 2);
  Holder first(&pool, Range(0, 4), 2);
  const PrefixMatch match = first.Lookup();
  ASSERT_EQ(match.blocks, first.table);
  EXPECT_EQ(match.num_unreferenced, 0);
  std::vector<BlockId> second;
  pool.Take(match, &second);
  EXPECT_EQ(pool.references(second[0]), 2);
  first.Release();
  EXPECT_EQ(pool.num_used(), 2);
  pool.Rollback(&second, 0);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(first.Lookup().num_unreferenced, 2);
  Invariants::Check(pool);
}

TEST(BlockPoolTest, RootsSeparateTenantsWeightsRopesAndAdapters) {
  BlockPool pool(16, 2);
  const std::vector<int32_t> tokens = Range(0, 4);
  Holder base(&pool, tokens, 2);
  for (const PrefixRoot& root :
       {PrefixRoot{.salt = "a"}, PrefixRoot{.salt = "", .weights_version = 1},
        PrefixRoot{.salt = "", .weights_version = 0, .long_rope = true}, PrefixRoot{.salt = "", .adapter = 1}}) {
    PrefixChain chain(root, 2);
    chain.Extend(tokens);
    EXPECT_TRUE(pool.Lookup(chain, tokens, 10).blocks.empty());
    EXPECT_NE(chain.hashes().front(), base.chain.hashes().front());
  }
}

TEST(BlockPoolTest, ACollisionNeverReturnsAnotherPrompt) {
  BlockPool pool(16, 2, /*hash_mask=*/0);  // every block has the same hash
  Holder first(&pool, {1, 2}, 2);
  EXPECT_EQ(first.Lookup().blocks.size(), 1u);
  Holder second(&pool, {3, 4}, 2);  // takes the only name
  EXPECT_TRUE(first.Lookup().blocks.empty());
  EXPECT_EQ(second.Lookup().blocks.size(), 1u);
  // Equal tokens below another root, and below another predecessor.
  PrefixChain other_root({.salt = "x"}, 2);
  other_root.Extend(second.tokens);
  EXPECT_TRUE(pool.Lookup(other_root, second.tokens, 10).blocks.empty());
  Holder third(&pool, {3, 4, 3, 4}, 2);
  Invariants::Check(pool);
  const PrefixMatch match = third.Lookup();  // the second block took the name of the first
  EXPECT_TRUE(match.blocks.empty());
  first.Release();
  second.Release();
  third.Release();
  Invariants::Check(pool);
}

TEST(BlockPoolTest, APredecessorIsComparedByIdentityNotByHash) {
  // Two hashes in all: chains of equal last blocks below different first ones meet often.
  for (int32_t trial = 0; trial < 200; ++trial) {
    BlockPool pool(16, 1, /*hash_mask=*/1);
    Holder first(&pool, {trial, 7}, 1);
    PrefixChain chain({}, 1);
    const std::vector<int32_t> tokens = {trial + 1000, 7};
    chain.Extend(tokens);
    EXPECT_TRUE(pool.Lookup(chain, tokens, 10).blocks.empty()) << trial;
    Invariants::Check(pool);
  }
}

TEST(BlockPoolTest, AnEqualBlockKeepsTheNameOfTheFirst) {
  BlockPool pool(8, 2);
  Holder first(&pool, Range(0, 4), 2);
  Holder twin(&pool, Range(0, 4), 2);
  EXPECT_EQ(twin.Lookup().blocks, first.table);
  twin.Release();
  EXPECT_EQ(pool.num_cached(), 0);  // the twin's blocks held nothing that is findable
  first.Release();
  EXPECT_EQ(pool.num_cached(), 2);
  Invariants::Check(pool);
}

TEST(BlockPoolTest, AnOrphanGivesItsNameToTheRecomputed) {
  BlockPool pool(6, 2);
  Holder first(&pool, Range(0, 4), 2);
  Holder twin(&pool, Range(0, 6), 2);  // its third block is published below the first's second
  first.Release();
  // The first's blocks are evicted while the twin still runs: its third block has no predecessor any more.
  std::vector<BlockId> table;
  ASSERT_TRUE(pool.Allocate(3, &table));
  EXPECT_EQ(pool.num_evictions(), 2);
  EXPECT_TRUE(twin.Lookup().blocks.empty());
  pool.Rollback(&table, 0);
  Holder again(&pool, Range(0, 6), 2);
  EXPECT_EQ(again.Lookup().blocks, again.table);
  Invariants::Check(pool);
}

TEST(BlockPoolTest, ForgottenBlocksAreNotFound) {
  BlockPool pool(4, 2);
  Holder held(&pool, Range(0, 4), 2);
  pool.Forget(held.table[1]);
  EXPECT_EQ(held.Lookup().blocks.size(), 1u);
  held.Release();
  EXPECT_EQ(pool.num_cached(), 1);
  pool.Forget(0);
  EXPECT_EQ(pool.num_cached(), 0);
  Invariants::Check(pool);
}

TEST(BlockPoolTest, TheLeastRecentlyUsedIsReusedFirst) {
  BlockPool pool(4, 2);
  Holder first(&pool, Range(0, 4), 2);
  Holder second(&pool, Range(10, 4), 2);
  first.Release();
  second.Release();
  std::vector<BlockId> touched;
  pool.Take(first.Lookup(), &touched);  // the first is used again
  pool.Rollback(&touched, 0);
  std::vector<BlockId> table;
  ASSERT_TRUE(pool.Allocate(2, &table));
  EXPECT_EQ(first.Lookup().blocks.size(), 2u);
  EXPECT_TRUE(second.Lookup().blocks.empty());
  ASSERT_TRUE(pool.Allocate(1, &table));
  EXPECT_EQ(first.Lookup().blocks.size(), 1u);  // the tail went first
  Invariants::Check(pool);
}

TEST(PrefixChainTest, HashesAreOfTheWholeBeginningAndIncremental) {
  PrefixChain whole({}, 2), parts({}, 2), other({}, 2);
  std::vector<int32_t> tokens = Range(0, 5);
  whole.Extend(tokens);
  parts.Extend(absl::MakeConstSpan(tokens).subspan(0, 3));
  EXPECT_EQ(parts.hashes().size(), 1u);
  parts.Extend(tokens);
  EXPECT_EQ(whole.hashes(), parts.hashes());
  tokens[0] = 99;
  other.Extend(tokens);
  EXPECT_NE(whole.hashes()[1], other.hashes()[1]);
}

}  // namespace
}  // namespace switchyard::batching
