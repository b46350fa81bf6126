// Against HuggingFace transformers: logits in fp32, fp64 and bf16, and greedy tokens, of every fixture.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"

namespace switchyard::model {
namespace {

constexpr double kExactTolerance = 1e-4;  // of the largest logit
constexpr double kFp16Tolerance = 1e-2;
constexpr double kBf16Tolerance = 2e-2;
// Prompts up to this length are chosen so that transformers' own bf16 stays below 1e-2 (make.py).
constexpr size_t kBf16Length = 12;

std::vector<LogitsGolden> AllLogits(const Fixture& fixture) {
  std::vector<LogitsGolden> all = fixture.logits;
  all.push_back(fixture.steady);
  return all;
}

// The largest difference at each position, relative to the largest golden logit of all.
std::vector<double> Distances(const std::vector<double>& found, const LogitsGolden& golden) {
  EXPECT_EQ(found.size(), golden.values.size());
  std::vector<double> worst(golden.tokens.size());
  const size_t vocab = golden.values.size() / golden.tokens.size();
  double largest = 0;
  for (size_t i = 0; i < std::min(found.size(), golden.values.size()); ++i) {
    largest = std::max<double>(largest, std::abs(golden.values[i]));
    const double difference = std::abs(found[i] - golden.values[i]);
    if (!(difference <= worst[i / vocab])) worst[i / vocab] = difference;  // NaN stays
  }
  for (double& difference : worst) difference /= largest;
  return worst;
}

double WorstDistance(const Fixture& fixture, const RankGroupOptions& options, size_t max_length = 1000) {
  RankGroup group(fixture.dir, options);
  double worst = 0;
  for (const LogitsGolden& golden : AllLogits(fixture)) {
    if (golden.tokens.size() > max_length) continue;
    for (const double distance : Distances(group.Logits(golden.tokens), golden)) {
      if (!(distance <= worst)) worst = distance;
    }
  }
  return worst;
}

// The first `count` greedy tokens of every prompt; emulated, of the short ones.
void ExpectGreedyTokens(const Fixture& fixture, const RankGroupOptions& options, size_t count) {
  ASSERT_GE(fixture.greedy.size(), 8u);
  RankGroup group(fixture.dir, options);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<GreedyGolden> goldens = fixture.greedy;
  if (DeviceIsEmulated()) {
    const auto is_long = [](const GreedyGolden& golden) { return golden.prompt.size() > 48; };
    goldens.erase(std::remove_if(goldens.begin(), goldens.end(), is_long), goldens.end());
    ASSERT_GE(goldens.size(), 4u);
  }
  for (const GreedyGolden& golden : goldens) prompts.push_back(golden.prompt);
  const std::vector<std::vector<int32_t>> tokens = group.Greedy(prompts, static_cast<int32_t>(count));
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> golden = goldens[i].tokens;
    ASSERT_GE(golden.size(), 64u);
    EXPECT_GE(std::set<int32_t>(golden.begin(), golden.end()).size(), 16u);
    golden.resize(count);
    EXPECT_EQ(tokens[i], golden) << "prompt of " << prompts[i].size();
  }
}

// Some of their ops have no kernels on devices yet.
bool OnCpuAlone(const std::string& fixture) { return absl::StartsWith(fixture, "gpt2"); }

class ForwardTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (OnCpuAlone(GetParam()) && !TestDevice().is_cpu()) GTEST_SKIP() << "runs on the CPU alone";
  }
};

TEST_P(ForwardTest, LogitsInFp32) {
  const double distance = WorstDistance(LoadFixture(GetParam()), {.dtype = DType::kF32});
  RecordProperty("distance", std::to_string(distance));
  EXPECT_LT(distance, kExactTolerance);
}

TEST_P(ForwardTest, LogitsInFp64) {
  EXPECT_LT(WorstDistance(LoadFixture(GetParam()), {.dtype = DType::kF64}), kExactTolerance);
}

TEST_P(ForwardTest, LogitsInBf16) {
  EXPECT_LT(WorstDistance(LoadFixture(GetParam()), {.dtype = DType::kBf16}, kBf16Length), kBf16Tolerance);
}

TEST_P(ForwardTest, LogitsInFp16) {
  EXPECT_LT(WorstDistance(LoadFixture(GetParam()), {.dtype = DType::kF16}), kFp16Tolerance);
}

// Where a row's bits may depend on other rows, as a worker runs by default: products by cuBLASLt, tiles that split k,
// wgmma, attention's decode kernel.
TEST_P(ForwardTest, LogitsAndTokensNotDeterministic) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU is always deterministic";
  const Fixture fixture = LoadFixture(GetParam());
  const size_t length = DeviceIsEmulated() ? kBf16Length : 1000;
  RankGroupOptions options = {.deterministic = false};
  EXPECT_LT(WorstDistance(fixture, options, length), kExactTolerance);
  options.dtype = DType::kF16;
  EXPECT_LT(WorstDistance(fixture, options, length), kFp16Tolerance);
  options.dtype = DType::kBf16;
  EXPECT_LT(WorstDistance(fixture, options, kBf16Length), kBf16Tolerance);
  options.dtype = DType::kF32;
  ExpectGreedyTokens(fixture, options, DeviceIsEmulated() ? 3 : 64);
}

// The fixtures' wide weights make attention sharp, which magnifies the roundings of q and k, and some router of a
// longer prompt is nearly undecided, so that in bf16 another expert may answer.  Both happen here as in transformers,
// but not at the same positions: the prompts' distances are compared in falling order, the largest with transformers'
// largest, from the tenth part on each with its own; how many are beyond the tolerance is counted.
TEST_P(ForwardTest, LongPromptsInBf16AreAsNearAsTransformersOwnBf16) {
  const Fixture fixture = LoadFixture(GetParam());
  RankGroup group(fixture.dir, {.dtype = DType::kBf16});
  int compared = 0;
  for (const LogitsGolden& golden : AllLogits(fixture)) {
    if (golden.tokens.size() <= kBf16Length) continue;
    std::vector<double> ours = Distances(group.Logits(golden.tokens), golden);
    std::vector<double> theirs(golden.bf16.begin(), golden.bf16.end());
    ASSERT_EQ(ours.size(), theirs.size());
    std::sort(ours.rbegin(), ours.rend());
    std::sort(theirs.rbegin(), theirs.rend());
    for (size_t i = 0; i < ours.size(); ++i) {
      if (i > 0 && i < ours.size() / 10) continue;
      EXPECT_LE(ours[i], std::max(kBf16Tolerance, 1.5 * theirs[i])) << i << "-largest of " << ours.size();
    }
    const auto beyond = [](double distance) { return !(distance <= kBf16Tolerance); };
    EXPECT_LE(std::count_if(ours.begin(), ours.end(), beyond), std::count_if(theirs.begin(), theirs.end(), beyond) + 2);
    EXPECT_LE(ours[ours.size() / 2], std::min(kBf16Tolerance, 1.1 * theirs[ours.size() / 2])) << "the median";
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

TEST_P(ForwardTest, GreedyTokens) {
  ExpectGreedyTokens(LoadFixture(GetParam()), {.dtype = DType::kF32}, DeviceIsEmulated() ? 8 : 64);
}

// Over all fixtures: positions beyond 2e-2 are rare, and fewer than in transformers' own bf16 (45 and 109 of 929).  Of
// the 45, 8 were answered by other experts than in fp32, 13 come after such a row of their prompt, and 24 (up to 0.037)
// are roundings alone, 10 of them in fixtures whose files are fp32 or fp16, where the weights are rounded, too.
TEST(Bf16Test, PositionsBeyondTheToleranceAreRare) {
  int64_t ours = 0, theirs = 0, positions = 0;
  const auto beyond = [](auto distance) { return !(distance <= kBf16Tolerance); };
  for (const std::string& name : FixtureNames()) {
    if (OnCpuAlone(name) && !TestDevice().is_cpu()) continue;
    const Fixture fixture = LoadFixture(name);
    RankGroup group(fixture.dir, {.dtype = DType::kBf16});
    for (const LogitsGolden& golden : AllLogits(fixture)) {
      if (golden.tokens.size() <= kBf16Length) continue;
      const std::vector<double> distances = Distances(group.Logits(golden.tokens), golden);
      ours += std::count_if(distances.begin(), distances.end(), beyond);
      theirs += std::count_if(golden.bf16.begin(), golden.bf16.end(), beyond);
      positions += static_cast<int64_t>(distances.size());
    }
  }
  RecordProperty("beyond", absl::StrCat(ours, " of ", positions, ", transformers ", theirs));
  EXPECT_LT(ours * 10, positions);
  EXPECT_LT(ours * 3, theirs * 2);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ForwardTest, ::testing::ValuesIn(FixtureNames()),
                         [](const auto& info) { return TestName(info.param); });

// A comparison proves something only if it fails when a part of the model is wrong.
struct Ablation {
  const char* name;
  const char* fixture;
  void (*edit)(ModelConfig*);
};

void NoRope(ModelConfig* c) {
  c->rope = {.kind = ops::RopeKind::kLinear, .theta = 1e4, .rotary_dim = c->head_dim, .factor = 1e9};
}
void DefaultRope(ModelConfig* c) { c->rope.kind = ops::RopeKind::kDefault; }
void ShortFactorsOnly(ModelConfig* c) { c->rope.long_factor = c->rope.short_factor; }
void LongFactorsOnly(ModelConfig* c) { c->rope.short_factor = c->rope.long_factor; }
void OriginalOneMore(ModelConfig* c) { c->rope.original_max_positions += 1; }
void FlipRenormalize(ModelConfig* c) { c->renormalize = !c->renormalize; }
void NoQkNorm(ModelConfig* c) { c->qk_norm = QkNorm::kNone; }
void NoWindow(ModelConfig* c) {
  for (LayerConfig& layer : c->layers) layer.window = 0;
}
void WindowOneMore(ModelConfig* c) {
  for (LayerConfig& layer : c->layers) layer.window += layer.window > 0 ? 1 : 0;
}

constexpr Ablation kAblations[] = {
    {"renormalisation_mixtral", "mixtral-gqa", FlipRenormalize},
    {"renormalisation_qwen2", "qwen2-shared", FlipRenormalize},
    {"renormalisation_qwen3", "qwen3-qknorm", FlipRenormalize},
    {"renormalisation_olmoe", "olmoe-clip", FlipRenormalize},
    {"rope_mixtral", "mixtral-gqa", NoRope},
    {"rope_qwen2", "qwen2-shared", NoRope},
    {"rope_qwen3", "qwen3-qknorm", NoRope},
    {"rope_olmoe", "olmoe-clip", NoRope},
    {"linear_scaling", "mixtral-fused", DefaultRope},
    {"yarn", "qwen3-yarn", DefaultRope},
    {"llama3", "qwen3-llama3", DefaultRope},
    {"longrope", "olmoe-longrope", DefaultRope},
    {"longrope_long_factors", "olmoe-longrope", ShortFactorsOnly},
    {"longrope_short_factors", "olmoe-longrope", LongFactorsOnly},
    {"longrope_switch_off_by_one", "olmoe-longrope", OriginalOneMore},
    {"q_norm_qwen3", "qwen3-qknorm", NoQkNorm},
    {"q_norm_olmoe", "olmoe-clip", NoQkNorm},
    {"window_mixtral", "mixtral-window", NoWindow},
    {"window_qwen2", "qwen2-sliding", NoWindow},
    {"window_qwen3", "qwen3-llama3", NoWindow},
    {"window_off_by_one", "mixtral-window", WindowOneMore},
    {"shared_expert", "qwen2-shared", [](ModelConfig* c) { c->shared_intermediate = 0; }},
    {"clip_qkv", "olmoe-clip", [](ModelConfig* c) { c->clip_qkv = 0; }},
    {"qkv_bias", "qwen2-shared", [](ModelConfig* c) { c->qkv_bias = false; }},
    {"o_bias", "qwen3-llama3", [](ModelConfig* c) { c->o_bias = false; }},
    {"norm_eps", "mixtral-gqa", [](ModelConfig* c) { c->norm_eps = 0.1; }},
    {"renormalisation_gpt2", "gpt2-top2", FlipRenormalize},
    {"positions_gpt2", "gpt2-top2", [](ModelConfig* c) { c->learned_positions = false, c->rope.rotary_dim = 2; }},
    {"layer_norm", "gpt2-top2", [](ModelConfig* c) { c->norm = NormKind::kRms; }},
    {"layer_norm_eps", "gpt2-top1", [](ModelConfig* c) { c->norm_eps = 1e-2; }},
    {"router_bias", "gpt2-bias", [](ModelConfig* c) { c->router_bias = false; }},
    {"ffn_biases", "gpt2-top1", [](ModelConfig* c) { c->ffn_bias = false; }},
    {"sinks", "gptoss-plain", [](ModelConfig* c) { c->attention_sinks = false; }},
    {"sinks_mxfp4", "gptoss-mxfp4", [](ModelConfig* c) { c->attention_sinks = false; }},
    {"window_gptoss", "gptoss-plain", NoWindow},
    {"window_gptoss_off_by_one", "gptoss-mxfp4", WindowOneMore},
    {"yarn_gptoss", "gptoss-mxfp4", DefaultRope},
    {"yarn_gptoss_truncated", "gptoss-plain", [](ModelConfig* c) { c->rope.truncate = true; }},
    {"renormalisation_gptoss", "gptoss-plain", FlipRenormalize},
    {"qkv_bias_gptoss", "gptoss-plain", [](ModelConfig* c) { c->qkv_bias = false; }},
    {"o_bias_gptoss", "gptoss-plain", [](ModelConfig* c) { c->o_bias = false; }},
    {"router_logit_bias", "gptoss-plain", [](ModelConfig* c) { c->router_logit_bias = false; }},
    {"expert_biases", "gptoss-plain", [](ModelConfig* c) { c->ffn_bias = false; }},
    {"expert_biases_mxfp4", "gptoss-mxfp4", [](ModelConfig* c) { c->ffn_bias = false; }},
    {"clamp", "gptoss-plain", [](ModelConfig* c) { c->glu_clamp.limit = 1e6; }},
    {"clamp_mxfp4", "gptoss-mxfp4", [](ModelConfig* c) { c->glu_clamp.limit = 1e6; }},
    {"clamped_swiglu", "gptoss-plain", [](ModelConfig* c) { c->glu_clamp = {}; }},
    {"alpha", "gptoss-mxfp4", [](ModelConfig* c) { c->glu_clamp.alpha = 1.702; }},
};

class AblationTest : public ::testing::TestWithParam<Ablation> {};

TEST_P(AblationTest, IsSeen) {
  if (OnCpuAlone(GetParam().fixture) && !TestDevice().is_cpu()) GTEST_SKIP() << "runs on the CPU alone";
  const Fixture fixture = LoadFixture(GetParam().fixture);
  const double distance = WorstDistance(fixture, {.dtype = DType::kF32, .edit = GetParam().edit});
  EXPECT_GT(distance, 10 * kExactTolerance);
  EXPECT_TRUE(std::isfinite(distance));
}

INSTANTIATE_TEST_SUITE_P(Parts, AblationTest, ::testing::ValuesIn(kAblations),
                         [](const auto& info) { return std::string(info.param.name); });

// They differ by less than an ablation shows.
TEST(GeluTest, TheTwoKindsAreDistinguished) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "runs on the CPU alone";
  const auto swap = [](ModelConfig* c) {
    c->activation = c->activation == ops::Activation::kGelu ? ops::Activation::kGeluTanh : ops::Activation::kGelu;
  };
  for (const char* name : {"gpt2-top1", "gpt2-top2"}) {
    const Fixture fixture = LoadFixture(name);
    const double right = WorstDistance(fixture, {.dtype = DType::kF32});
    EXPECT_GT(WorstDistance(fixture, {.dtype = DType::kF32, .edit = swap}), 10 * right) << name;
  }
}

}  // namespace
}  // namespace switchyard::model
