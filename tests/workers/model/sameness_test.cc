// Parameters that must not change an answer do not: chunks, cache blocks, batch, threads, ranks, micro-batches.
#include <algorithm>

#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"

namespace switchyard::model {
namespace {

constexpr int32_t kNumTokens = 24;

struct Variant {
  const char* name;
  RankGroupOptions options;
};

std::vector<Variant> Variants() {
  return {
      {"chunk 1", {.chunk = 1}},
      {"chunk 7", {.chunk = 7}},
      {"block size 1", {.block_size = 1}},
      {"batch 1", {.batch = 1}},
      {"three threads", {.threads = 3}},
      {"two ranks", {.world = 2}},
      {"four ranks", {.world = 4}},
      {"two ranks, three micro-batches", {.world = 2, .micro_batches = 3}},
      {"two ranks that give away rows", {.world = 2, .batch = 3, .min_rebalance_rows = 1}},
      {"four ranks that give away rows, three micro-batches",
       {.world = 4,
        .threads = 2,
        .block_size = 1,
        .chunk = 7,
        .batch = 5,
        .micro_batches = 3,
        .min_rebalance_rows = 2}},
      {"all at once", {.world = 4, .threads = 2, .block_size = 1, .chunk = 7, .batch = 3, .micro_batches = 2}},
  };
}

using Param = std::tuple<std::string, DType>;
class SamenessTest : public ::testing::TestWithParam<Param> {};

TEST_P(SamenessTest, GreedyTokens) {
  const auto& [name, dtype] = GetParam();
  const Fixture fixture = LoadFixture(name);
  std::vector<std::vector<int32_t>> prompts;
  for (const GreedyGolden& golden : fixture.greedy) {
    if (golden.prompt.size() < 600) prompts.push_back(golden.prompt);
  }
  RankGroupOptions base;
  base.dtype = dtype;
  const auto expected = RankGroup(fixture.dir, base).Greedy(prompts, kNumTokens);
  for (Variant& run : Variants()) {
    run.options.dtype = dtype;
    RankGroup group(fixture.dir, run.options);
    EXPECT_EQ(group.Greedy(prompts, kNumTokens), expected) << run.name;
    EXPECT_EQ(group.rows_given() > 0, run.options.min_rebalance_rows > 0) << run.name;
  }
}

// Tokens may hide small differences: logits may not.
TEST_P(SamenessTest, LogitsBitForBit) {
  const auto& [name, dtype] = GetParam();
  const Fixture fixture = LoadFixture(name);
  RankGroupOptions base, ranks;
  base.dtype = ranks.dtype = dtype;
  ranks.world = 3;
  ranks.micro_batches = 2;
  ranks.block_size = 1;
  ranks.threads = 2;
  RankGroup one(fixture.dir, base), three(fixture.dir, ranks);
  const std::vector<int32_t>& tokens = fixture.steady.tokens;
  const std::vector<double> expected = one.Logits(tokens);
  EXPECT_EQ(three.Logits(tokens), expected);
  ranks.min_rebalance_rows = 1;
  RankGroup rebalancing(fixture.dir, ranks);
  EXPECT_EQ(rebalancing.Logits(tokens), expected);
  EXPECT_GE(rebalancing.rows_given(), static_cast<int64_t>(tokens.size()) / 2);
  const std::vector<int32_t> half(tokens.begin(), tokens.begin() + 17);
  const size_t count = half.size() * static_cast<size_t>(one.config().vocab_size);
  EXPECT_EQ(one.Logits(half), std::vector<double>(expected.begin(), expected.begin() + static_cast<int64_t>(count)));
}

// Layers whose matrices are held in several formats, as GGUF files mix them: in memory, in slots that experts of all
// layers share, and in copies.
class FormatsByLayerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FormatsByLayerTest, GreedyTokensAndLogits) {
  using ops::WeightFormat;
  const Fixture fixture = LoadFixture(GetParam());
  const auto config = ReadModelConfig(fixture.dir);
  ASSERT_TRUE(config.ok()) << config.status();
  RankGroupOptions base;
  base.formats.head = WeightFormat::kQ6_K;
  constexpr WeightFormat kQ4 = WeightFormat::kQ4_1, kQ6 = WeightFormat::kQ6_K, kQ8 = WeightFormat::kQ8_0;
  int moe_layers = 0;
  for (const LayerConfig& layer : config->layers) {
    moe_layers += layer.moe ? 1 : 0;
    base.formats.layers.push_back(moe_layers % 2 == 0
                                      ? ops::LayerFormats{kQ6, kQ4, kQ4, kQ6, kQ4, kQ6}
                                      : ops::LayerFormats{kQ4, kQ8, kQ6, kQ8, kQ8, WeightFormat::kPlain});
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const GreedyGolden& golden : fixture.greedy) {
    if (golden.prompt.size() < 600) prompts.push_back(golden.prompt);
  }
  const auto tokens = RankGroup(fixture.dir, base).Greedy(prompts, kNumTokens);
  const std::vector<double> logits = RankGroup(fixture.dir, base).Logits(fixture.steady.tokens);
  RankGroupOptions uniform;
  uniform.formats = ops::WeightFormats(kQ4, kQ4, kQ6, kQ6);
  EXPECT_NE(RankGroup(fixture.dir, uniform).Logits(fixture.steady.tokens), logits);
  RankGroupOptions ranks = base, slots = base, both = base, copies = base;
  ranks.world = both.world = copies.world = 2;
  ranks.chunk = both.chunk = 7;
  slots.expert_slots = both.expert_slots = static_cast<int>(config->top_k) + 2;
  copies.placement = placement::PlacementMode::kAgreed;
  const Variant variants[] = {{"two ranks", ranks}, {"slots", slots}, {"slots of two ranks", both}, {"copies", copies}};
  for (const Variant& run : variants) {
    EXPECT_EQ(RankGroup(fixture.dir, run.options).Greedy(prompts, kNumTokens), tokens) << run.name;
    EXPECT_EQ(RankGroup(fixture.dir, run.options).Logits(fixture.steady.tokens), logits) << run.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FormatsByLayerTest, ::testing::Values("olmoe-clip", "qwen2-sliding", "qwen2-shared"),
                         [](const auto& info) { return TestName(info.param); });

INSTANTIATE_TEST_SUITE_P(Fixtures, SamenessTest,
                         ::testing::Combine(::testing::Values("qwen2-sliding", "olmoe-clip", "qwen3-yarn",
                                                              "mixtral-window", "olmoe-longrope", "gptoss-mxfp4"),
                                            ::testing::Values(DType::kF32, DType::kBf16)),
                         [](const auto& info) {
                           return TestName(std::get<0>(info.param)) + "_" + DTypeName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace switchyard::model
