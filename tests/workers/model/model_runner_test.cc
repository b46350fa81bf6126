// The runner's manners: slots between steps, copies of blocks, logprobs, broken sequences.
#include "workers/model/runner/model_runner.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/runner_fixture.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

// So that all logits are NaN.
void OverflowingRope(ModelConfig* config) {
  config->rope = {.kind = ops::RopeKind::kYarn,
                  .rotary_dim = config->head_dim,
                  .factor = 2,
                  .original_max_positions = 320,
                  .attention_factor = 1e38};
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(KvCacheTest, TouchTakesTheMemory) {
  constexpr int64_t kBytes = 64 << 20;
  ThreadPool pool(2, false);
  ModelConfig config;
  config.layers.resize(1);
  config.num_kv_heads = 2;
  config.head_dim = 64;
  absl::StatusOr<KvCache> cache = KvCache::Create(config, DType::kBf16, 16, kBytes);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const int64_t before = ResidentBytes();
  ASSERT_TRUE(cache->Touch(Stream::OnCpu(&pool)).ok());
  EXPECT_GT(ResidentBytes() - before, kBytes * 9 / 10);
}

TEST_F(ModelRunnerTest, WhatAStepSampledStaysInTheSlot) {
  const GreedyGolden& golden = fixture_.greedy[2];  // 7 tokens
  auto result = Execute(Items({Prefill(1, golden.prompt, {5, 2})}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].tokens[0], golden.tokens[0]);
  EXPECT_EQ(result->rows, 7);
  EXPECT_EQ(result->expert_counts.size(), 2u * 7u);
  for (int i = 0; i < 6; ++i) {
    std::vector<batching::BlockId> blocks;
    if ((7 + i) % 4 == 0) blocks.push_back(10 + i);
    result = Execute(Items({Decode(1, 7 + i, blocks)}));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->items[0].tokens[0], golden.tokens[i + 1]);
  }
}

// Decoded rows are counted apart from those of prompts, in one step, as they are alone.
TEST_F(ModelRunnerTest, DecodedRowsAreCountedApart) {
  const GreedyGolden& first = fixture_.greedy[2];   // 7 tokens
  const GreedyGolden& second = fixture_.greedy[4];  // 15 tokens
  auto prefill = Execute(Items({Prefill(0, first.prompt, {0, 1})}));
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_TRUE(prefill->decode_expert_counts.empty());
  auto alone = Execute(Items({Decode(0, 7, {})}));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->decode_expert_counts, alone->expert_counts);
  // The same decode again, on another slot, beside a prompt.
  ASSERT_TRUE(Execute(Items({Prefill(1, first.prompt, {2, 3})})).ok());
  const auto mixed = Execute(Items({Decode(1, 7, {}), Prefill(2, second.prompt, {4, 5, 6, 7})}));
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->decode_expert_counts, alone->expert_counts);
  const auto sum = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  EXPECT_EQ(sum(mixed->expert_counts), 16 * sum(mixed->decode_expert_counts));
  // On a device a graph of more rows may run them.
  const auto decodes = Execute(Items({Decode(0, 8, {8}), Decode(1, 8, {9}), Decode(2, 15, {})}));
  ASSERT_TRUE(decodes.ok()) << decodes.status();
  EXPECT_EQ(decodes->rows, 3);
}

TEST_F(ModelRunnerTest, ACachedPrefixGivesTheSameTokens) {
  const GreedyGolden& golden = fixture_.greedy[4];  // 15 tokens
  ASSERT_TRUE(Execute(Items({Prefill(0, golden.prompt, {0, 1, 2, 3})})).ok());
  // Another sequence of the same prompt reuses blocks 0, 1 and 2: 12 positions are there already.
  batching::StepItem item = Prefill(1, golden.prompt, {0, 1, 2, 4});
  item.start_pos = 12;
  item.num_query = 3;
  const auto result = Execute(Items({item}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].tokens[0], golden.tokens[0]);
}

TEST_F(ModelRunnerTest, PreemptedSequencesGoOnFromWhatTheyEmitted) {
  const GreedyGolden& golden = fixture_.greedy[3];
  std::vector<int32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.tokens.begin(), golden.tokens.begin() + 20);
  batching::StepItem item = Prefill(2, tokens, {7, 6, 5, 4, 3, 2, 1});
  item.init->num_prompt_tokens = static_cast<int32_t>(golden.prompt.size());
  const auto result = Execute(Items({item}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].tokens[0], golden.tokens[20]);
}

// Computed anew, a longrope sequence is rotated by what its prompt was, not by the length that it has grown to; and the
// last chunk of a long prompt as its first.
TEST_F(ModelRunnerTest, LongropeRemembersThePromptsLength) {
  const Fixture longrope = LoadFixture("olmoe-longrope");
  RankGroup group(longrope.dir, {.dtype = DType::kF32, .block_size = 16, .batch = 4});
  int64_t seen = 0;
  for (const GreedyGolden& golden : longrope.greedy) {
    const auto num_prompt = static_cast<int32_t>(golden.prompt.size());
    if (num_prompt < 33 || num_prompt > 66) continue;
    std::vector<int32_t> tokens = golden.prompt;
    tokens.insert(tokens.end(), golden.tokens.begin(), golden.tokens.begin() + 40);
    batching::StepItem item = Prefill(0, tokens, {6, 5, 4, 3, 2, 1, 0});
    item.init->num_prompt_tokens = num_prompt;
    batching::StepItem rest = Decode(0, num_prompt - 1);
    rest.num_query = item.num_query - rest.start_pos;
    item.num_query = rest.start_pos;
    item.sample = false;
    batching::StepPlan step;
    ASSERT_TRUE(group.runner(0).Execute(step, Items({item}), absl::Now() + absl::Seconds(10)).ok());
    const auto result = group.runner(0).Execute(step, Items({rest}), absl::Now() + absl::Seconds(10));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->items[0].tokens[0], golden.tokens[40]) << "prompt of " << num_prompt;
    ++seen;
  }
  EXPECT_EQ(seen, 6);
}

TEST_F(ModelRunnerTest, Logprobs) {
  const LogitsGolden& golden = fixture_.logits[1];
  const auto num_tokens = static_cast<int32_t>(golden.tokens.size());
  const int64_t vocab = group_.config().vocab_size;
  // Logprobs of prompt positions over two chunks, and of the sampled token.
  batching::StepItem first = Prefill(0, golden.tokens, {0, 1, 2});
  first.init->sampling.num_prompt_logprobs = 2;
  first.init->sampling.num_logprobs = 1;
  first.num_query = 4;
  first.sample = false;
  batching::StepItem second = Decode(0, 4);
  second.num_query = num_tokens - 4;
  std::vector<batching::PositionLogprobs> found;
  for (const batching::StepItem& item : {first, second}) {
    const auto result = Execute(Items({item}));
    ASSERT_TRUE(result.ok()) << result.status();
    for (const batching::PositionLogprobs& logprobs : result->items[0].prompt_logprobs) found.push_back(logprobs);
    if (item.sample) {
      ASSERT_EQ(result->items[0].logprobs.size(), 1u);
      EXPECT_EQ(result->items[0].logprobs[0].chosen.rank, 1);
      EXPECT_EQ(result->items[0].logprobs[0].chosen.token, result->items[0].tokens[0]);
    }
  }
  ASSERT_EQ(found.size(), golden.tokens.size() - 1);
  for (int32_t p = 0; p + 1 < num_tokens; ++p) {
    const float* logits = golden.values.data() + p * vocab;
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(logits[v]));
    const int32_t next = golden.tokens[p + 1];
    EXPECT_EQ(found[p].chosen.token, next);
    EXPECT_NEAR(found[p].chosen.logprob, logits[next] - std::log(sum), 2e-3);
    EXPECT_EQ(found[p].top.size(), 2u);
  }
}

TEST_F(ModelRunnerTest, AnEmptyPlanIsAStep) {
  const auto result = Execute({});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->rows, 0);
  EXPECT_TRUE(result->items.empty());
}

// The plan was made before anyone knew that a sequence had broken: its rows are missing, and fewer are given away.
TEST_F(ModelRunnerTest, ATransferOfABrokenSequencesRows) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "devices give away no rows";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4, .edit = OverflowingRope});
  const auto execute = [&](const batching::RankPlan& plan, int32_t given) {
    batching::StepPlan step;
    if (given > 0) step.transfers = {{.from = 0, .to = 1, .rows = given}};
    absl::StatusOr<batching::RankResult> results[2];
    std::thread other([&] { results[1] = two.runner(1).Execute(step, {}, absl::Now() + absl::Seconds(10)); });
    results[0] = two.runner(0).Execute(step, plan, absl::Now() + absl::Seconds(10));
    other.join();
    EXPECT_TRUE(results[0].ok() && results[1].ok()) << results[0].status() << results[1].status();
    return std::pair(results[0]->rows, results[1]->rows);
  };
  EXPECT_EQ(execute(Items({Prefill(0, {1, 2, 3}, {0})}), 0), std::pair(int64_t{3}, int64_t{0}));
  EXPECT_EQ(execute(Items({Decode(0, 3), Prefill(1, {1, 2, 3}, {1})}), 2), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(execute(Items({Decode(0, 4, {2}), Prefill(2, {1, 2, 3}, {3})}), 4), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(execute(Items({Decode(0, 5)}), 1), std::pair(int64_t{0}, int64_t{0}));
}

// A sequence whose logits are no numbers ends; the step, the others and plans already on their way go on.
TEST_F(ModelRunnerTest, BrokenSequencesAreAnsweredNotRun) {
  RankGroup broken(fixture_.dir, {.dtype = DType::kF32, .block_size = 4, .batch = 4, .edit = OverflowingRope});
  const auto execute = [&](batching::RankPlan plan) {
    batching::StepPlan step;
    return broken.runner(0).Execute(step, plan, absl::Now() + absl::Seconds(10));
  };
  batching::StepItem item = Prefill(0, {1, 2, 3}, {0});
  item.init->sampling.expert_paths_from = 0;
  auto result = execute(Items({item}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].status, batching::ItemStatus::kNonFinite);
  EXPECT_TRUE(result->items[0].tokens.empty() && result->items[0].expert_paths.empty());
  result = execute(Items({Decode(0, 3)}));  // the server had not seen it yet
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].status, batching::ItemStatus::kNonFinite);
  EXPECT_EQ(result->rows, 0);
  EXPECT_TRUE(execute(Free(0)).ok());
}

TEST_F(ModelRunnerTest, RunnersThatMakeNoSense) {
  const auto cache = KvCache::Create(group_.config(), DType::kF32, 4, 100);
  EXPECT_THAT(std::string(cache.status().message()),
              HasSubstr("kv_cache_bytes 100 holds no block: one of 4 tokens takes"));
  EXPECT_FALSE(KvCache::Create(group_.config(), DType::kF32, 0, 1 << 20).ok());
}

}  // namespace
}  // namespace switchyard::model
