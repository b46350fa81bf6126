// gpt-oss as GGUF: the fixtures that llama.cpp's converter wrote (tests/golden/gguf/models.py) have the values, the
// held numbers, the logits and the greedy tokens of HuggingFace's checkpoints that they were made of.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/small_gguf.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/loader.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

std::string GgufOf(const std::string& name) { return absl::StrCat("tests/golden/gguf/models/", name, ".gguf"); }

ModelConfig ConfigOf(const std::string& path) {
  absl::StatusOr<ModelConfig> config = ReadModelConfig(path);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

class GgufGptOssTest : public testing::TestWithParam<const char*> {};

// But for what the converter does not write, which are gpt-oss's own in published models: layers with a window and
// the activation's clamp.
TEST_P(GgufGptOssTest, HasTheConfig) {
  const ModelConfig expected = ConfigOf(LoadFixture(GetParam()).dir), found = ConfigOf(GgufOf(GetParam()));
  EXPECT_EQ(found.model_type, "gpt_oss");
  EXPECT_EQ(found.architecture, expected.architecture);
  EXPECT_EQ(found.vocab_size, expected.vocab_size);
  EXPECT_EQ(found.hidden, expected.hidden);
  EXPECT_EQ(found.context, expected.context);
  ASSERT_EQ(found.num_layers(), expected.num_layers());
  const auto windowed = std::find_if(expected.layers.begin(), expected.layers.end(),
                                     [](const LayerConfig& layer) { return layer.window > 0; });
  for (size_t i = 0; i < found.layers.size(); ++i) {
    EXPECT_TRUE(found.layers[i].moe);
    EXPECT_EQ(found.layers[i].window, i % 2 == 0 ? windowed->window : 0) << i;
  }
  EXPECT_EQ(found.num_heads, expected.num_heads);
  EXPECT_EQ(found.num_kv_heads, expected.num_kv_heads);
  EXPECT_EQ(found.head_dim, expected.head_dim);
  EXPECT_TRUE(found.qkv_bias && found.o_bias && found.attention_sinks && found.ffn_bias && found.router_logit_bias);
  EXPECT_EQ(found.rope.kind, ops::RopeKind::kYarn);
  EXPECT_EQ(found.rope.theta, expected.rope.theta);
  EXPECT_EQ(found.rope.factor, expected.rope.factor);
  EXPECT_EQ(found.rope.original_max_positions, expected.rope.original_max_positions);
  EXPECT_EQ(found.rope.beta_fast, expected.rope.beta_fast);
  EXPECT_EQ(found.rope.beta_slow, expected.rope.beta_slow);
  EXPECT_FALSE(found.rope.truncate);
  EXPECT_EQ(found.num_experts, expected.num_experts);
  EXPECT_EQ(found.top_k, expected.top_k);
  EXPECT_EQ(found.expert_intermediate, expected.expert_intermediate);
  EXPECT_EQ(found.glu_clamp.limit, 7);
  EXPECT_EQ(found.glu_clamp.alpha, 1.702);
  EXPECT_TRUE(found.renormalize && found.norm_rounds_once);
  EXPECT_EQ(found.norm_eps, expected.norm_eps);
  EXPECT_EQ(found.tie_embeddings, expected.tie_embeddings);
}

// Gate and up are rows by turns in one checkpoint, matrices of their own in the other.
TEST_P(GgufGptOssTest, WeightsAreTheSameBytes) {
  const std::string dir = LoadFixture(GetParam()).dir, file = GgufOf(GetParam());
  ModelConfig config = ConfigOf(dir), gguf_config = ConfigOf(file);
  const auto checkpoint = checkpoint::Checkpoint::Open(dir), gguf = checkpoint::Checkpoint::Open(file);
  ASSERT_TRUE(checkpoint.ok() && gguf.ok()) << checkpoint.status() << gguf.status();
  std::vector<ops::WeightFormats> formats = {{}, ops::WeightFormat::kInt8};
  if (config.quantization.has_value()) formats.push_back(ops::WeightFormat::kMxfp4);
  for (const ops::WeightFormats& format : formats) {
    const auto load = [&](const checkpoint::Checkpoint& from, const ModelConfig& of) {
      LoadOptions options;
      options.format = format;
      for (int32_t e = 0; e < of.num_experts; ++e) options.residents.push_back(e);
      return LoadWeights(from, of, std::move(options));
    };
    const auto expected = load(*checkpoint, config), found = load(*gguf, gguf_config);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(found.ok()) << found.status();
    const auto same = [](const ops::Weight& a, const ops::Weight& b) {
      return a.bytes() == b.bytes() && a.bytes() > 0 && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
    };
    EXPECT_TRUE(same(found->lm_head, expected->lm_head));
    for (size_t i = 0; i < expected->layers.size(); ++i) {
      const LayerWeights &a = found->layers[i], &b = expected->layers[i];
      EXPECT_TRUE(same(a.attention.qkv, b.attention.qkv) && same(a.attention.o, b.attention.o)) << i;
      EXPECT_EQ(a.attention.sinks.bytes(), b.attention.sinks.bytes());
      EXPECT_EQ(std::memcmp(a.attention.sinks.view().raw(), b.attention.sinks.view().raw(), a.attention.sinks.bytes()),
                0);
      EXPECT_TRUE(same(a.moe->router, b.moe->router)) << i;
      for (size_t e = 0; e < b.moe->experts.size(); ++e) {
        EXPECT_TRUE(same(a.moe->experts[e].gate_up, b.moe->experts[e].gate_up)) << i << " " << e;
        EXPECT_TRUE(same(a.moe->experts[e].down, b.moe->experts[e].down)) << i << " " << e;
      }
    }
  }
}

// With the windows and the clamp of the fixture, of which the file says nothing.
TEST_P(GgufGptOssTest, LogitsAndTokensAreThoseOfTransformers) {
  const Fixture fixture = LoadFixture(GetParam());
  const ModelConfig config = ConfigOf(fixture.dir);
  RankGroup group(GgufOf(GetParam()), {.edit = [&](ModelConfig* edited) {
                    edited->layers = config.layers;
                    edited->glu_clamp = config.glu_clamp;
                  }});
  for (const LogitsGolden& golden : fixture.logits) {
    const std::vector<double> found = group.Logits(golden.tokens);
    ASSERT_EQ(found.size(), golden.values.size());
    double largest = 0, worst = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      largest = std::max<double>(largest, std::abs(golden.values[i]));
      worst = std::max(worst, std::abs(found[i] - golden.values[i]));
    }
    EXPECT_LT(worst, 1e-4 * largest);
  }
  std::vector<std::vector<int32_t>> prompts, tokens;
  for (const GreedyGolden& golden : fixture.greedy) {
    prompts.push_back(golden.prompt);
    tokens.push_back(golden.tokens);
  }
  ASSERT_GE(prompts.size(), 8u);
  EXPECT_EQ(group.Greedy(prompts, static_cast<int32_t>(tokens[0].size())), tokens);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GgufGptOssTest, testing::Values("gptoss-plain", "gptoss-mxfp4"),
                         [](const auto& each) { return TestName(each.param); });

// What of gpt-oss a file does not say, and what its keys may say.
TEST(GgufGptOssKeysTest, AreRead) {
  SmallGguf model("gpt-oss");
  model.SetInt("attention.sliding_window", 6);
  model.SetInt("block_count", 4);
  model.SetInt("expert_gating_func", 3);
  for (int i = 1; i < 4; ++i) {
    model.f32[absl::StrCat("blk.", i, ".ffn_gate_inp.weight")] = {2, 32};
    model.q8[absl::StrCat("blk.", i, ".ffn_up_exps.weight")] = {2, 32, 32};
  }
  model.f32["blk.0.ffn_gate_inp.bias"] = {2};
  for (const char* part : {"gate", "up", "down"}) model.f32[absl::StrCat("blk.0.ffn_", part, "_exps.bias")] = {2, 32};
  model.keys["eos"] = checkpoint::GgufU32Key("tokenizer.ggml.eos_token_id", 2);
  std::string tokens;
  for (const char* token : {"a", "<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"}) {
    tokens += checkpoint::GgufText(token);
  }
  model.keys["tokens"] = checkpoint::GgufArrayKey("tokenizer.ggml.tokens", GgufValueType::kString, 5, tokens);
  GgufRead read = ReadSmallGguf(model);
  ASSERT_TRUE(read.config.ok()) << read.config.status();
  auto config = ParseModelConfig(*read.config, "");
  ASSERT_TRUE(config.ok()) << config.status() << *read.config;
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 4, 1}));
  EXPECT_EQ(config->rope.kind, ops::RopeKind::kDefault);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(config->layers[i].window, i % 2 == 0 ? 6 : 0);
  ASSERT_TRUE(read.tensors.ok()) << read.tensors.status();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const checkpoint::GgufModelTensor& tensor : *read.tensors) shapes[tensor.name] = tensor.shape;
  EXPECT_EQ(shapes["model.layers.0.mlp.router.bias"], (std::vector<int64_t>{2}));
  EXPECT_EQ(shapes["model.layers.0.mlp.experts.1.up_proj.bias"], (std::vector<int64_t>{32}));
  model.keys["pattern"] = checkpoint::GgufArrayKey("gpt-oss.attention.sliding_window_pattern", GgufValueType::kBool, 4,
                                                   std::string("\0\1\1\0", 4));
  read = ReadSmallGguf(model);
  ASSERT_TRUE(read.config.ok()) << read.config.status();
  config = ParseModelConfig(*read.config, "");
  ASSERT_TRUE(config.ok()) << config.status();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(config->layers[i].window, i == 1 || i == 2 ? 6 : 0);
  const auto refusal = [&](auto change) {
    SmallGguf bad = model;
    change(&bad);
    return std::string(ReadSmallGguf(bad).config.status().message());
  };
  EXPECT_THAT(refusal([](SmallGguf* m) { m->keys.erase("attention.sliding_window"); }), HasSubstr("is missing"));
  EXPECT_THAT(refusal([](SmallGguf* m) { m->SetInt("attention.sliding_window", 0); }),
              HasSubstr("key \"gpt-oss.attention.sliding_window\": expected at least 1, found 0"));
  EXPECT_THAT(refusal([](SmallGguf* m) { m->SetInt("expert_gating_func", 1); }),
              HasSubstr("expected softmax of the chosen experts' logits (3), found 1"));
  model.f32["blk.0.ffn_up_exps.bias"] = {3, 32};
  EXPECT_THAT(ReadSmallGguf(model).tensors.status().message(),
              HasSubstr("[3, 32]: expected 2 dimensions, the first of 2 experts"));
}

}  // namespace
}  // namespace switchyard::model
