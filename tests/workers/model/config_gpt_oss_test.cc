// config.json of gpt-oss: what is read from it, as transformers reads it, and what is refused.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "workers/model/config/config.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

std::string Error(const nlohmann::json& config) {
  const auto parsed = ParseModelConfig(config.dump(), "");
  return parsed.ok() ? "no error" : std::string(parsed.status().message());
}

nlohmann::json GptOss() {
  return {{"model_type", "gpt_oss"}, {"vocab_size", 100},        {"hidden_size", 64},
          {"num_hidden_layers", 3},  {"num_attention_heads", 8}, {"num_key_value_heads", 2},
          {"head_dim", 32},          {"intermediate_size", 96},  {"max_position_embeddings", 131072},
          {"num_local_experts", 8},  {"num_experts_per_tok", 4}};
}

TEST(ConfigTest, GptOssAsTransformersReadsIt) {
  const auto c = ParseModelConfig(GptOss().dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->architecture, "GptOssForCausalLM");
  EXPECT_TRUE(c->attention_sinks && c->qkv_bias && c->o_bias && c->ffn_bias && c->router_logit_bias);
  EXPECT_TRUE(c->renormalize && c->norm_rounds_once);
  EXPECT_EQ(c->norm_eps, 1e-5);
  EXPECT_EQ(c->expert_intermediate, 96);
  EXPECT_EQ(c->glu_clamp.limit, 7.0);
  EXPECT_EQ(c->glu_clamp.alpha, 1.702);
  EXPECT_EQ(c->rope.kind, ops::RopeKind::kYarn);
  EXPECT_EQ(c->rope.theta, 150000);
  EXPECT_EQ(c->rope.factor, 32);
  EXPECT_EQ(c->rope.original_max_positions, 4096);
  EXPECT_FALSE(c->rope.truncate);
  EXPECT_EQ(c->layers[0].window, 128);
  EXPECT_EQ(c->layers[1].window, 0);
  EXPECT_EQ(c->layers[2].window, 128);
}

TEST(ConfigTest, GptOssBadFieldsAreNamed) {
  const struct {
    const char* key;
    nlohmann::json value;
    const char* error;
  } kCases[] = {
      {"swiglu_limit", 0, "swiglu_limit"},
      {"swiglu_limit", "7", "swiglu_limit"},
      {"swiglu_alpha", -1, "swiglu_alpha"},
      {"sliding_window", 0, "sliding_window"},
      {"attention_bias", 1, "attention_bias"},
      {"num_experts_per_tok", 9, "num_experts_per_tok: 9 exceeds num_local_experts 8"},
      {"layer_types", {"full_attention"}, "layer_types: has 1 entries for 3 layers"},
      {"hidden_act", "gelu", "hidden_act: unknown activation \"gelu\""},
  };
  for (const auto& each : kCases) {
    nlohmann::json config = GptOss();
    config[each.key] = each.value;
    EXPECT_THAT(Error(config), HasSubstr(each.error));
  }
  nlohmann::json config = GptOss();
  config["swiglu_limt"] = 7;
  EXPECT_THAT(Error(config), HasSubstr("did you mean \"swiglu_limit\"?"));
}

}  // namespace
}  // namespace switchyard::model
