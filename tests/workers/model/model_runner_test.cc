// The runner's manners: slots between steps, plans that do not fit, copies of blocks, logprobs, broken sequences.
#include "workers/model/model_runner.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "workers/model/kv_cache.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class ModelRunnerTest : public ::testing::Test {
 protected:
  ModelRunnerTest()
      : fixture_(LoadFixture("qwen3-qknorm")),
        group_(fixture_.dir, {.dtype = DType::kF32, .block_size = 4, .batch = 4}) {}

  absl::StatusOr<RankResult> Execute(RankPlan plan) {
    StepPlan step;
    step.step = ++step_;
    return group_.runner(0).Execute(step, plan, absl::Now() + absl::Seconds(10));
  }
  static RankPlan Items(std::vector<StepItem> items) {
    RankPlan plan;
    plan.items = std::move(items);
    return plan;
  }
  static RankPlan Free(SlotId slot) {
    RankPlan plan;
    plan.freed_slots = {slot};
    return plan;
  }
  // An item that prefills all of `tokens` and samples greedily.
  static StepItem Prefill(SlotId slot, const std::vector<int32_t>& tokens, std::vector<BlockId> blocks) {
    StepItem item;
    item.slot = slot;
    item.num_query = static_cast<int32_t>(tokens.size());
    item.init = SlotInit{.tokens = tokens, .num_prompt_tokens = item.num_query, .sampling = {}};
    item.init->sampling.temperature = 0;
    item.new_blocks = std::move(blocks);
    item.sample = true;
    return item;
  }
  static StepItem Decode(SlotId slot, int32_t start_pos, std::vector<BlockId> blocks = {}) {
    StepItem item;
    item.slot = slot;
    item.start_pos = start_pos;
    item.num_query = 1;
    item.new_blocks = std::move(blocks);
    item.sample = true;
    return item;
  }
  void ExpectRefused(const RankPlan& plan, const std::string& message,
                     absl::StatusCode code = absl::StatusCode::kInternal) {
    const auto result = Execute(plan);
    EXPECT_EQ(result.status().code(), code) << message;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message));
  }

  Fixture fixture_;
  RankGroup group_;
  int64_t step_ = 0;
};

// So that all logits are NaN.
void OverflowingRope(ModelConfig* config) {
  config->rope = {.kind = RopeKind::kYarn,
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
  absl::StatusOr<KvCache> cache =
      KvCache::Create({{.num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBf16}}, 16, kBytes);
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
    std::vector<BlockId> blocks;
    if ((7 + i) % 4 == 0) blocks.push_back(10 + i);
    result = Execute(Items({Decode(1, 7 + i, blocks)}));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->items[0].tokens[0], golden.tokens[i + 1]);
  }
}

TEST_F(ModelRunnerTest, CopiedBlocksAndACachedPrefixGiveTheSameTokens) {
  const GreedyGolden& golden = fixture_.greedy[4];  // 15 tokens
  ASSERT_TRUE(Execute(Items({Prefill(0, golden.prompt, {0, 1, 2, 3})})).ok());
  // Another sequence of the same prompt reuses blocks 0 and 1 and a copy of block 2: 12 positions are there already.
  StepItem item = Prefill(1, golden.prompt, {0, 1, 9, 4});
  item.start_pos = 12;
  item.num_query = 3;
  RankPlan plan = Items({item});
  plan.copies = {{2, 9}};
  const auto result = Execute(plan);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].tokens[0], golden.tokens[0]);
}

TEST_F(ModelRunnerTest, PreemptedSequencesGoOnFromWhatTheyEmitted) {
  const GreedyGolden& golden = fixture_.greedy[3];
  std::vector<int32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.tokens.begin(), golden.tokens.begin() + 20);
  StepItem item = Prefill(2, tokens, {7, 6, 5, 4, 3, 2, 1});
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
    StepItem item = Prefill(0, tokens, {6, 5, 4, 3, 2, 1, 0});
    item.init->num_prompt_tokens = num_prompt;
    StepItem rest = Decode(0, num_prompt - 1);
    rest.num_query = item.num_query - rest.start_pos;
    item.num_query = rest.start_pos;
    item.sample = false;
    StepPlan step;
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
  // Of prompt positions over two chunks, and of the sampled token.
  StepItem first = Prefill(0, golden.tokens, {0, 1, 2});
  first.init->sampling.num_prompt_logprobs = 2;
  first.init->sampling.num_logprobs = 1;
  first.num_query = 4;
  first.sample = false;
  StepItem second = Decode(0, 4);
  second.num_query = num_tokens - 4;
  std::vector<PositionLogprobs> found;
  for (const StepItem& item : {first, second}) {
    const auto result = Execute(Items({item}));
    ASSERT_TRUE(result.ok()) << result.status();
    for (const PositionLogprobs& logprobs : result->items[0].prompt_logprobs) found.push_back(logprobs);
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

TEST_F(ModelRunnerTest, PlansThatDoNotFitAreRefusedAndChangeNothing) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  ExpectRefused(Items({Decode(0, 0, {0})}), "slot 0: is empty and the item has no init");
  ExpectRefused(Items({Prefill(4, tokens, {0})}), "slot 4: outside [0, 4)");
  ExpectRefused(Items({Prefill(-1, tokens, {0})}), "slot -1: outside [0, 4)");
  ExpectRefused(Free(9), "slot 9: freed, but outside [0, 4)");
  ExpectRefused(Items({Prefill(0, tokens, {0}), Prefill(0, tokens, {1})}), "slot 0: two items in one step");
  ExpectRefused(Items({Prefill(0, {1, 999}, {0})}), "slot 0: token 999 is outside [0, 256)");
  ExpectRefused(Items({Prefill(0, {}, {0})}), "slot 0: 0 tokens, expected [1, 640]");
  ExpectRefused(Items({Prefill(0, tokens, {})}), "slot 0: 0 blocks of 4 for 3 positions");
  ExpectRefused(Items({Prefill(0, tokens, {1 << 20})}), "slot 0: block 1048576 is outside [0, ");
  ExpectRefused(Items({Prefill(0, tokens, std::vector<int32_t>(161, 0))}), "slot 0: 161 blocks of 4, context 640");
  StepItem bad = Prefill(0, tokens, {0});
  bad.num_query = 4;
  ExpectRefused(Items({bad}), "slot 0: queries [0,4) of 3 tokens");
  bad.num_query = 2;
  ExpectRefused(Items({bad}), "slot 0: samples behind position 2 of 3 tokens");
  bad.num_query = 0;
  ExpectRefused(Items({bad}), "slot 0: queries [0,0) of 3 tokens");
  bad = Prefill(0, tokens, {0});
  bad.init->num_prompt_tokens = 4;
  ExpectRefused(Items({bad}), "slot 0: num_prompt_tokens 4 of 3 tokens");
  bad = Prefill(0, tokens, {0});
  bad.draft_tokens = {1};
  ExpectRefused(Items({bad}), "draft tokens", absl::StatusCode::kUnimplemented);
  ASSERT_TRUE(Execute(Items({Prefill(0, tokens, {0})})).ok());
  ExpectRefused(Items({Decode(0, 5)}), "slot 0: start_pos 5, computed 3");
  ASSERT_TRUE(Execute(Items({Decode(0, 3)})).ok());
  ExpectRefused(Items({Decode(0, 4)}), "slot 0: 1 blocks of 4 for 5 positions");
  RankPlan freed = Items({Decode(0, 4, {1})});
  freed.freed_slots = {0};
  ExpectRefused(freed, "slot 0: is empty and the item has no init");
  EXPECT_TRUE(Execute(Items({Decode(0, 4, {1})})).ok());  // all those refusals left the slot alone
  EXPECT_TRUE(Execute(Free(0)).ok());
  EXPECT_FALSE(group_.runner(0).slots().slot(0).in_use);
  RankPlan copies;
  copies.copies = {{0, 1 << 20}};
  EXPECT_EQ(Execute(copies).status().code(), absl::StatusCode::kInternal);
}

// What travels in fixed sizes has them from the plan, before anything is sent, so that this rank alone can ask.
TEST_F(ModelRunnerTest, DecodesThatAreNoneAreRefused) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "nothing has a fixed size on the CPU";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4});
  const auto refusal = [&](int32_t padded_rows, const RankPlan& plan) {
    StepPlan step;
    step.exchange_version = kDecodeExchange;
    step.padded_rows = padded_rows;
    const auto result = two.runner(0).Execute(step, plan, absl::Now());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    return std::string(result.status().message());
  };
  EXPECT_EQ(refusal(4, Items({Prefill(2, {1, 2, 3}, {0})})), "plan: slot 2: 3 queries in a step of plain decodes");
  StepItem unsampled = Prefill(2, {1}, {0});
  unsampled.sample = false;
  EXPECT_EQ(refusal(4, Items({unsampled})), "plan: slot 2: 1 queries and no sample in a step of plain decodes");
  for (const int32_t padded_rows : {1, 0, -1}) {
    EXPECT_EQ(refusal(padded_rows, Items({Prefill(0, {1}, {0}), Prefill(1, {2}, {1})})),
              absl::StrCat("plan: 2 decodes, padded_rows ", padded_rows));
  }
}

TEST_F(ModelRunnerTest, AnEmptyPlanIsAStep) {
  const auto result = Execute({});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->rows, 0);
  EXPECT_TRUE(result->items.empty());
}

// Refused before anything is sent, so that this rank alone can ask.
TEST_F(ModelRunnerTest, LoansThatDoNotFitAreRefused) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "devices lend no rows";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4});
  const auto refusal = [&](std::vector<RowLoan> loans) {
    StepPlan step;
    step.loans = std::move(loans);
    const auto result = two.runner(0).Execute(step, Items({Prefill(0, {1, 2, 3}, {0})}), absl::Now());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    return std::string(result.status().message());
  };
  EXPECT_EQ(refusal({{0, 2, 1}}), "plan: loan of 1 rows from rank 0 to rank 2: wants two ranks of 2");
  EXPECT_EQ(refusal({{-1, 0, 1}}), "plan: loan of 1 rows from rank -1 to rank 0: wants two ranks of 2");
  EXPECT_EQ(refusal({{0, 0, 1}}), "plan: loan of 1 rows from rank 0 to rank 0: wants two ranks of 2");
  EXPECT_EQ(refusal({{0, 1, 0}}), "plan: loan of 0 rows from rank 0 to rank 1: wants at least one row");
  EXPECT_EQ(refusal({{0, 1, 1}, {1, 0, 1}}), "plan: loan of 1 rows from rank 1 to rank 0: rank 0 lends and borrows");
  EXPECT_EQ(refusal({{0, 1, 4}}), "plan: loans of 4 of the 3 rows of rank 0");
}

// The plan was made before anyone knew that a sequence had broken: its rows are missing, and fewer are lent.
TEST_F(ModelRunnerTest, ALoanOfABrokenSequencesRows) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "devices lend no rows";
  RankGroup two(fixture_.dir, {.dtype = DType::kF32, .world = 2, .block_size = 4, .batch = 4, .edit = OverflowingRope});
  const auto execute = [&](const RankPlan& plan, int32_t lent) {
    StepPlan step;
    if (lent > 0) step.loans = {{.from = 0, .to = 1, .rows = lent}};
    absl::StatusOr<RankResult> results[2];
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
  const auto execute = [&](RankPlan plan) {
    StepPlan step;
    return broken.runner(0).Execute(step, plan, absl::Now() + absl::Seconds(10));
  };
  auto result = execute(Items({Prefill(0, {1, 2, 3}, {0})}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].status, ItemStatus::kNonFinite);
  EXPECT_TRUE(result->items[0].tokens.empty());
  result = execute(Items({Decode(0, 3)}));  // the server had not seen it yet
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->items[0].status, ItemStatus::kNonFinite);
  EXPECT_EQ(result->rows, 0);
  EXPECT_TRUE(execute(Free(0)).ok());
}

TEST_F(ModelRunnerTest, RunnersThatMakeNoSense) {
  const auto cache = KvCache::Create(CacheSpecs(group_.config(), DType::kF32), 4, 100);
  EXPECT_THAT(std::string(cache.status().message()),
              HasSubstr("kv_cache_bytes 100 holds no block: one of 4 tokens takes"));
  EXPECT_FALSE(KvCache::Create(CacheSpecs(group_.config(), DType::kF32), 0, 1 << 20).ok());
}

}  // namespace
}  // namespace switchyard
