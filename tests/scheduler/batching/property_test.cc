// Random requests, policies and accidents against the fake model: whatever the policy, every request gets exactly the
// outputs of a run without neighbours, nothing leaks, no limit is exceeded, and everything ends.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/scheduler/batching/property_drill.h"

namespace switchyard::testing_batching {
namespace {

// One policy on one group.
struct Shape {
  batching::BatchingPolicy policy;
  int32_t num_ranks = 1;
  int32_t num_blocks = 1;

  std::string DebugString() const {
    return absl::StrCat("ranks ", num_ranks, " blocks ", num_blocks, "x", policy.block_size, " seqs ",
                        policy.max_num_seqs, " budget ", policy.max_batched_tokens, " chunk ", policy.prefill_chunk,
                        " len ", policy.max_model_len, " reuse ", policy.prefix_reuse, " in_flight ",
                        policy.max_in_flight, " preempt_every_step ", policy.preempt_every_step);
  }
};

Shape RandomShape(uint32_t seed) {
  std::mt19937 random(seed * 7919 + 1);
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Shape shape;
  batching::BatchingPolicy& p = shape.policy;
  p.max_num_seqs = pick(1, 8);
  p.max_batched_tokens = std::max(p.max_num_seqs, pick(1, 40));
  p.prefill_chunk = std::vector<int32_t>{0, 0, 1, 3, 7}[pick(0, 4)];
  p.block_size = std::vector<int32_t>{1, 2, 4, 16}[pick(0, 3)];
  p.max_model_len = pick(6, 64);
  p.max_queue = pick(4, 40);
  p.prefix_reuse = pick(0, 3) > 0;
  p.max_prefix_imbalance = pick(0, 3);
  p.min_rebalance_rows = pick(-1, 5);
  p.max_in_flight = pick(1, 3);
  p.preempt_every_step = pick(0, 3) == 0;
  shape.num_ranks = pick(1, 3);
  // From hardly one sequence to room for all; sometimes less than max_model_len.
  const int32_t tokens = std::max(6, p.max_model_len * pick(1, 6) / 2);
  shape.num_blocks = std::max(1, tokens / p.block_size + pick(0, 2));
  if (shape.num_blocks * p.block_size < 4) shape.num_blocks = 4;
  return shape;
}

class PropertyTest : public testing::TestWithParam<int> {};

constexpr int kSeedsPerShard = 150;
constexpr Accidents kAccidents[] = {
    {},
    {.cancel = 0.05, .lose_group = 0, .non_finite = 0, .deadline = 0.2},
    {.cancel = 0.02, .lose_group = 0.005, .non_finite = 0.01, .deadline = 0.1},
    {.cancel = 0.01, .lose_group = 0.05, .non_finite = 0, .deadline = 0},
};

TEST_P(PropertyTest, OutputsAreThoseOfARunAlone) {
  int64_t steps = 0, preemptions = 0, hits = 0, outlived = 0;
  for (int i = 0; i < kSeedsPerShard; ++i) {
    const uint32_t seed = GetParam() * kSeedsPerShard + i;
    const Shape shape = RandomShape(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << shape.DebugString());
    const Accidents accidents = kAccidents[i % std::size(kAccidents)];
    Drill drill(seed, shape.policy, shape.num_ranks, shape.num_blocks, accidents);
    drill.Go(30);
    if (HasFailure()) return;
    steps += drill.steps();
    preemptions += drill.stats().preemptions;
    hits += drill.stats().prefix_hit_tokens;
    outlived += drill.stats().outlived_losses;
  }
  // The workload reaches what it is meant to test.
  EXPECT_GT(steps, 10000);
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(hits, 1000);
  EXPECT_GT(outlived, 300);
  RecordProperty("steps", static_cast<int>(steps));
  RecordProperty("preemptions", static_cast<int>(preemptions));
}
INSTANTIATE_TEST_SUITE_P(Shards, PropertyTest, testing::Range(0, 4));

// The size of a real server: hundreds run, and there is memory for half of them.
TEST(SoakTest, ManySequencesOnFourRanks) {
  batching::BatchingPolicy policy;
  policy.max_num_seqs = 64;
  policy.max_batched_tokens = 256;
  policy.block_size = 2;
  policy.max_model_len = 160;
  policy.max_queue = 10000;
  Drill drill(1, policy, /*num_ranks=*/4, /*num_blocks=*/250, kAccidents[1]);
  drill.Go(1500, /*burst=*/60);
  EXPECT_GT(drill.stats().preemptions, 100);
  EXPECT_GT(drill.stats().prefix_hit_tokens, 0);
}

TEST(DeterminismTest, TheSameCallsGiveTheSamePlans) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Shape shape = RandomShape(seed);
    const Accidents accidents = kAccidents[2];
    Drill first(seed, shape.policy, shape.num_ranks, shape.num_blocks, accidents);
    Drill second(seed, shape.policy, shape.num_ranks, shape.num_blocks, accidents);
    first.Go(20);
    second.Go(20);
    ASSERT_FALSE(first.log().empty());
    EXPECT_EQ(first.log(), second.log()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace switchyard::testing_batching
