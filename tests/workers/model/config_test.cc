// config.json: what each family reads from it, in both spellings, and the errors of what is refused.
#include "workers/model/config/config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/qwen3_json.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/model/config/config_reader.h"

namespace switchyard::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Error(const nlohmann::json& config) {
  const auto parsed = ParseModelConfig(config.dump(), "");
  return parsed.ok() ? "no error" : std::string(parsed.status().message());
}

TEST(ConfigTest, Qwen3) {
  const auto c = ParseModelConfig(Qwen3().dump(), R"({"eos_token_id":[3,4]})");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(c->head_dim, 32);
  EXPECT_EQ(c->qkv_width(), 4 * 32 + 2 * 2 * 32);
  EXPECT_EQ(c->qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(c->renormalize);
  EXPECT_FALSE(c->qkv_bias);
  EXPECT_EQ(c->rope.theta, 1e6);
  EXPECT_EQ(c->rope.rotary_dim, 32);
  EXPECT_EQ(c->file_dtype, DType::kBf16);
  EXPECT_THAT(c->eos_token_ids, ElementsAre(3, 4));  // generation_config.json speaks last
  EXPECT_EQ(c->num_moe_layers(), 1);                 // 1; 3 is excluded, 0 and 2 are not due
  EXPECT_TRUE(c->layers[1].moe);
  EXPECT_EQ(c->dense_intermediate, 96);
}

TEST(ConfigTest, Gpt2Moe) {
  nlohmann::json config = {{"model_type", "gpt2_moe"}, {"vocab_size", 100},
                           {"hidden_size", 64},        {"num_hidden_layers", 4},
                           {"num_attention_heads", 4}, {"max_position_embeddings", 512},
                           {"intermediate_size", 256}, {"moe_intermediate_size", 128},
                           {"num_experts", 8},         {"num_experts_per_tok", 1},
                           {"decoder_sparse_step", 2}};
  auto c = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->norm, NormKind::kLayer);
  EXPECT_EQ(c->norm_eps, 1e-5);
  EXPECT_EQ(c->activation, ops::Activation::kGeluTanh);
  EXPECT_TRUE(c->learned_positions && c->qkv_bias && c->o_bias && c->ffn_bias && c->tie_embeddings);
  EXPECT_FALSE(c->renormalize);
  EXPECT_EQ(c->num_kv_heads, 4);
  EXPECT_EQ(c->rope.rotary_dim, 0);
  EXPECT_FALSE(c->layers[0].moe);
  EXPECT_TRUE(c->layers[1].moe);
  EXPECT_EQ(c->dense_intermediate, 256);
  config["hidden_act"] = "gelu";
  EXPECT_EQ(ParseModelConfig(config.dump(), "")->activation, ops::Activation::kGelu);
  config["hidden_act"] = "silu";
  EXPECT_THAT(Error(config), HasSubstr("hidden_act: unknown activation \"silu\"; known: gelu_new, gelu_pytorch_tanh"));
  config.erase("hidden_act");
  config["layer_norm_epsilo"] = 1e-3;
  EXPECT_THAT(Error(config), HasSubstr("did you mean \"layer_norm_epsilon\"?"));
}

TEST(ConfigTest, FixturesOfBothSpellings) {
  for (const std::string& name : FixtureNames()) {
    const auto c = ReadModelConfig(LoadFixture(name).dir);
    ASSERT_TRUE(c.ok()) << name << ": " << c.status();
    EXPECT_EQ(c->context, name == "mixtral-fused" ? 1280 : 640) << name;  // it has linear scaling
    EXPECT_THAT(c->eos_token_ids, ElementsAre(2, 3));
    EXPECT_TRUE(c->file_dtype.has_value());
  }
  const auto yarn = ReadModelConfig(LoadFixture("qwen3-yarn").dir);
  EXPECT_EQ(yarn->rope.kind, ops::RopeKind::kYarn);
  EXPECT_EQ(yarn->rope.factor, 4.0);
  EXPECT_EQ(yarn->rope.original_max_positions, 160);
  const auto llama3 = ReadModelConfig(LoadFixture("qwen3-llama3").dir);
  EXPECT_EQ(llama3->rope.kind, ops::RopeKind::kLlama3);
  EXPECT_EQ(llama3->rope.theta, 5e5);
  EXPECT_EQ(llama3->layers[1].window, 20);
  EXPECT_TRUE(llama3->o_bias);
  const auto sliding = ReadModelConfig(LoadFixture("qwen2-sliding").dir);
  EXPECT_EQ(sliding->layers[0].window, 7);
  EXPECT_EQ(sliding->layers[1].window, 0);
  EXPECT_EQ(sliding->layers[2].window, 7);
  EXPECT_EQ(sliding->layers[3].window, 0);
  EXPECT_EQ(sliding->num_moe_layers(), 2);
  EXPECT_EQ(ReadModelConfig(LoadFixture("olmoe-clip").dir)->clip_qkv, 1.5);
}

TEST(ConfigTest, Spellings) {
  nlohmann::json config = Qwen3();
  config.erase("num_experts");
  config["num_local_experts"] = 8;  // as transformers v5 saves it
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "linear"}, {"factor", 2}};
  config["dtype"] = "float16";
  config.erase("torch_dtype");
  config["eos_token_id"] = nullptr;
  auto c = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->num_experts, 8);
  EXPECT_EQ(c->rope.kind, ops::RopeKind::kLinear);
  EXPECT_EQ(c->context, 1024);  // 512 · 2
  EXPECT_EQ(c->rope.theta, 5000.0);
  EXPECT_EQ(c->file_dtype, DType::kF16);
  EXPECT_TRUE(c->eos_token_ids.empty());

  config["rope_parameters"] = {{"full_attention", {{"rope_theta", 10.0}, {"rope_type", "default"}}},
                               {"sliding_attention", {{"rope_theta", 10.0}, {"rope_type", "default"}}}};
  c = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->rope.theta, 10.0);
  config["rope_parameters"]["sliding_attention"]["rope_theta"] = 11.0;
  EXPECT_THAT(Error(config), HasSubstr("layer types with different RoPE parameters are not supported"));

  config = Qwen3();
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 128}};
  c = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->rope.factor, 4.0);  // 512 / 128
  EXPECT_EQ(c->context, 512);
  config.erase("model_type");  // the architecture is enough
  EXPECT_TRUE(ParseModelConfig(config.dump(), "").ok());
}

// max_position_embeddings may be what YaRN makes of the original context (DeepSeek, gpt-oss), or not (Qwen3).
TEST(ConfigTest, YarnLengthensTheContext) {
  nlohmann::json config = Qwen3();
  const auto context = [&](int64_t positions, double factor, int64_t original) {
    config["max_position_embeddings"] = positions;
    config["rope_scaling"] = {
        {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
    const auto c = ParseModelConfig(config.dump(), "");
    EXPECT_TRUE(c.ok()) << c.status();
    return c.ok() ? c->context : 0;
  };
  EXPECT_EQ(context(40960, 4, 32768), 131072);
  EXPECT_EQ(context(163840, 40, 4096), 163840);
  EXPECT_EQ(context(131072, 32, 4096), 131072);
  EXPECT_EQ(context(40960, 1.5, 32767), 49150);
  EXPECT_EQ(context(65536, 2, 4096), 65536);
  config["rope_scaling"]["factor"] = 1e9;
  EXPECT_THAT(Error(config), HasSubstr("rope_scaling.factor: makes a context of 4.096e+12 tokens, limit 1073741824"));
}

struct Case {
  const char* name;
  const char* key;
  nlohmann::json value;  // discarded: the key is removed
  const char* message;
};

TEST(ConfigTest, BadFields) {
  const nlohmann::json removed = nlohmann::json::value_t::discarded;
  const Case cases[] = {
      {"no_layers", "num_hidden_layers", removed, "config.json: num_hidden_layers: missing"},
      {"zero_layers", "num_hidden_layers", 0, "num_hidden_layers: expected an integer in [1, 4096], found 0"},
      {"billion_layers", "num_hidden_layers", 1000000000, "expected an integer in [1, 4096], found 1000000000"},
      {"layers_2_64", "num_hidden_layers", 18446744073709551615u, "expected an integer in [1, 4096]"},
      {"layers_float", "num_hidden_layers", 4.0, "expected an integer in [1, 4096], found 4.0"},
      {"layers_string", "num_hidden_layers", "4", "expected an integer in [1, 4096], found \"4\""},
      {"layers_true", "num_hidden_layers", true, "expected an integer in [1, 4096], found true"},
      {"layers_list", "num_hidden_layers", {4}, "expected an integer in [1, 4096], found [4]"},
      {"layers_negative", "num_hidden_layers", -4, "expected an integer in [1, 4096], found -4"},
      {"no_experts", "num_experts", 0, "num_experts: expected an integer in [1, 65536], found 0"},
      {"top_k_too_large", "num_experts_per_tok", 9, "num_experts_per_tok: 9 exceeds num_experts 8"},
      {"top_k_zero", "num_experts_per_tok", 0, "num_experts_per_tok: expected an integer in [1, 64], found 0"},
      {"kv_heads", "num_key_value_heads", 3, "num_key_value_heads: num_attention_heads 4 is no multiple of it: 3"},
      {"head_dim_zero", "head_dim", 0, "head_dim: expected an integer in [1, 256], found 0"},
      {"head_dim_odd", "head_dim", 33, "rotates 33 of 33 dims; it must be an even number"},
      {"head_dim_large", "head_dim", 512, "head_dim: expected an integer in [1, 256], found 512"},
      {"vocab_zero", "vocab_size", 0, "vocab_size: expected an integer in [1, 16777216], found 0"},
      {"hidden_huge", "hidden_size", int64_t{1} << 40, "hidden_size: expected an integer in [1, 1048576]"},
      {"theta_zero", "rope_theta", 0, "rope_theta: expected a number in (0, 1e+12], found 0"},
      {"theta_negative", "rope_theta", -1, "rope_theta: expected a number in (0, 1e+12], found -1"},
      {"theta_string", "rope_theta", "NaN", "rope_theta: expected a number in (0, 1e+12], found \"NaN\""},
      {"eps_negative", "rms_norm_eps", -1e-6, "rms_norm_eps: expected a number in [0, 1]"},
      {"activation", "hidden_act", "gelu", "hidden_act: unknown activation \"gelu\"; known: silu"},
      {"dtype", "torch_dtype", "int8", "torch_dtype: unknown dtype \"int8\""},
      {"rope_kind",
       "rope_scaling",
       {{"type", "dynamic"}, {"factor", 2}},
       "rope_scaling.type: unknown RoPE \"dynamic\""},
      {"rope_list", "rope_scaling", {2}, "rope_scaling: expected an object, found [2]"},
      {"rope_no_factor", "rope_scaling", {{"type", "linear"}}, "rope_scaling.factor: missing"},
      {"rope_factor_zero",
       "rope_scaling",
       {{"type", "linear"}, {"factor", 0}},
       "rope_scaling.factor: expected a number in (0"},
      {"longrope_lengths",
       "rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}},
       "rope_scaling.short_factor: expected 16 numbers, found 1"},
      {"llama3_factors",
       "rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
       "high_freq_factor: must exceed low_freq_factor 4"},
      {"mlp_only", "mlp_only_layers", {"4"}, "mlp_only_layers: expected an integer in"},
      {"sparse_step", "decoder_sparse_step", 0, "decoder_sparse_step: expected an integer in [1, "},
      {"head_dim", "head_dim", 0, "head_dim: expected an integer in [1, "},
      {"hidden", "hidden_size", "64", "hidden_size: expected an integer in"},
      {"heads", "num_attention_heads", 0, "num_attention_heads: expected an integer in"},
      {"kv_heads", "num_key_value_heads", 5000, "num_key_value_heads: expected an integer in"},
      {"longrope_type",
       "rope_scaling",
       {{"type", "longrope"}, {"short_factor", 1.0}, {"long_factor", std::vector<double>(16, 1.0)}},
       "rope_scaling.short_factor: expected a list of numbers, found 1.0"},
      {"llama3_bad_factor",
       "rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", "1"}, {"high_freq_factor", 4}},
       "rope_scaling.low_freq_factor: expected a number"},
      {"eos_negative", "eos_token_id", -1, "eos_token_id: expected an integer in [0, 2147483647]"},
      {"tie_string", "tie_word_embeddings", "true", "tie_word_embeddings: expected true or false, found \"true\""},
      {"remote_code", "auto_map", {{"AutoModel", "modeling_x.X"}}, "auto_map: remote code is refused"},
      {"quantized",
       "quantization_config",
       {{"quant_method", "hqq"}},
       "config.json: quantization_config.quant_method: found \"hqq\"; understood: fp8, compressed-tensors"},
      {"architecture", "model_type", "llama",
       "unknown architecture \"llama\"; known: mixtral (MixtralForCausalLM), qwen2_moe"},
      {"architecture_type", "model_type", 5, "unknown architecture"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    nlohmann::json config = Qwen3();
    config.erase(c.key);
    if (!c.value.is_discarded()) config[c.key] = c.value;
    if (absl::string_view(c.name) == "architecture_type") config.erase("architectures");
    EXPECT_THAT(Error(config), HasSubstr(c.message));
    // One bad field, one message: none about what other fields do not say.
    if (absl::string_view(c.name) != "longrope_lengths") {
      EXPECT_THAT(Error(config), Not(HasSubstr("\n")));
    }
  }
}

// A bad number of layers or of experts says nothing about the fields that are compared with it.
TEST(ConfigTest, ABadFieldIsNotComparedWithOthers) {
  nlohmann::json config = Qwen3();
  config["num_hidden_layers"] = 1000000000;
  config["layer_types"] = {"full_attention", "full_attention"};
  config.erase("intermediate_size");
  EXPECT_EQ(Error(config), "config.json: num_hidden_layers: expected an integer in [1, 4096], found 1000000000");
  config = Qwen3();
  config.erase("head_dim");
  config["hidden_size"] = 0;
  config["num_attention_heads"] = 7;
  config["num_key_value_heads"] = 7;
  EXPECT_EQ(Error(config), "config.json: hidden_size: expected an integer in [1, 1048576], found 0");
}

// As transformers reads them: (i + 1) % step == 0 and i not in the list, whatever their sizes.
TEST(ConfigTest, SparseStepsAndDenseLayersBeyondTheLastLayer) {
  nlohmann::json config = Qwen3();
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = {7, -1, int64_t{1} << 62};
  auto c = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->num_moe_layers(), 4);
  for (const int64_t step : {int64_t{9}, int64_t{1} << 62}) {
    config["decoder_sparse_step"] = step;
    c = ParseModelConfig(config.dump(), "");
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->num_moe_layers(), 0);
    EXPECT_EQ(c->dense_intermediate, 96);
  }
}

TEST(ConfigTest, RoutersWithBiases) {
  nlohmann::json config = {{"model_type", "gpt2_moe"},    {"vocab_size", 64},         {"hidden_size", 32},
                           {"num_hidden_layers", 2},      {"num_attention_heads", 4}, {"max_position_embeddings", 16},
                           {"moe_intermediate_size", 24}, {"num_experts", 4},         {"num_experts_per_tok", 2},
                           {"topk_method", "noaux_tc"}};
  const absl::StatusOr<ModelConfig> biased = ParseModelConfig(config.dump(), "");
  ASSERT_TRUE(biased.ok()) << biased.status();
  EXPECT_TRUE(biased->router_bias);
  config["topk_method"] = "greedy";
  EXPECT_FALSE(ParseModelConfig(config.dump(), "")->router_bias);
  config.erase("topk_method");
  EXPECT_FALSE(ParseModelConfig(config.dump(), "")->router_bias);
  config["topk_method"] = "group_limited_greedy";
  EXPECT_THAT(Error(config), HasSubstr("unknown method \"group_limited_greedy\"; known: greedy, noaux_tc"));
}

TEST(ConfigTest, HeadsWithoutHeadDim) {
  nlohmann::json config = Qwen3();
  config.erase("head_dim");
  config["num_attention_heads"] = 6;
  EXPECT_THAT(Error(config), HasSubstr("hidden_size 64 is no multiple of it: 6, and there is no head_dim"));
}

TEST(ConfigTest, NearestKeyIsNamed) {
  nlohmann::json config = Qwen3();
  config.erase("num_experts_per_tok");
  config["num_expert_per_tok"] = 2;
  EXPECT_THAT(Error(config), HasSubstr("num_experts_per_tok: missing; is it misspelled as \"num_expert_per_tok\"?"));
  config = Qwen3();
  config.erase("norm_topk_prob");
  config["norm_top_prob"] = true;
  EXPECT_THAT(Error(config), HasSubstr("norm_top_prob: unknown key; did you mean \"norm_topk_prob\"?"));
  config = Qwen3();
  config["something_of_somebody"] = 1;  // not near to anything: not our business
  EXPECT_EQ(Error(config), "no error");
}

TEST(ConfigTest, AllProblemsAtOnce) {
  nlohmann::json config = Qwen3();
  config["vocab_size"] = -1;
  config["hidden_act"] = "relu";
  config.erase("hidden_size");
  EXPECT_THAT(Error(config),
              AllOf(HasSubstr("vocab_size"), HasSubstr("hidden_act"), HasSubstr("hidden_size: missing")));
}

TEST(ConfigTest, BadTexts) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "config.json: syntax error at byte 1"},
      {"[]", "config.json: not an object"},
      {"null", "config.json: not an object"},
      {"\xef\xbb\xbf{}", "config.json: byte order mark at byte 0"},
      {R"({"rope_theta":NaN})", "config.json: syntax error at byte 15"},
      {R"({"a":1,"a":2})", "config.json: duplicate key \"a\""},
      {std::string(100, '[') + std::string(100, ']'), "config.json: nested deeper than 16"},
      {R"({"a":1} x)", "config.json: syntax error"},
      {"{\"a\":\"\xff\"}", "config.json: invalid UTF-8"},
      {"{}", "config.json: unknown architecture \"none\"; known:"},
  };
  for (const auto& [text, message] : cases) {
    const auto config = ParseModelConfig(text, "");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message));
  }
  EXPECT_THAT(std::string(ParseModelConfig(Qwen3().dump(), R"({"eos_token_id":"x"})").status().message()),
              HasSubstr("generation_config.json: eos_token_id: expected an integer"));
}

TEST(ConfigTest, Files) {
  TempDir dir;
  EXPECT_EQ(ReadModelConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
  dir.Write("config.json", Qwen3().dump() + std::string(kMaxConfigBytes, ' '));
  EXPECT_THAT(std::string(ReadModelConfig(dir.path()).status().message()), HasSubstr("bytes, limit 1048576"));
  dir.Write("config.json", Qwen3().dump());
  EXPECT_TRUE(ReadModelConfig(dir.path()).ok());
}

// As DeepSeek-R1's configuration has all three: the first error is the one that no other file could change.
TEST(ConfigTest, AnUnknownArchitectureIsReportedBeforeRemoteCodeAndQuantization) {
  nlohmann::json config = Qwen3();
  config["auto_map"] = {{"AutoModel", "modeling_x.X"}};
  config["quantization_config"] = {{"quant_method", "fp8"}};
  config["model_type"] = "deepseek_v3";
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "").status().message()),
              HasSubstr("unknown architecture \"deepseek_v3\"; known: mixtral (MixtralForCausalLM)"));
}

TEST(ConfigTest, QuantizationInItsNewerAndOlderSpelling) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    nlohmann::json config = Qwen3();
    config[key] = {{"quant_method", "awq"}, {"group_size", 64}};
    const auto read = ParseModelConfig(config.dump(), "");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->reading(), "awq: awq, 4 bits, groups of 64, with zero points");
    config[key]["bits"] = 3;
    config["num_experts_per_tok"] = 0;
    EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "").status().message()),
                AllOf(HasSubstr(std::string("config.json: ") + key + ".bits: found 3; understood: 4"),
                      HasSubstr("config.json: num_experts_per_tok: expected")));
  }
  EXPECT_EQ(ParseModelConfig(Qwen3().dump(), "")->reading(), "");
}

}  // namespace
}  // namespace switchyard::model
