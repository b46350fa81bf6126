// gpt-oss: attention sinks, windows on every second layer, biases everywhere, a clamped SwiGLU, RMSNorm that rounds
// once, YaRN.  The router's weights are a softmax over the chosen logits, which is that over all, divided by its kept
// sum.
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

constexpr double kMostOfActivation = 1e6;  // of limit and alpha

// What transformers takes where config.json says nothing of RoPE.
void UseDefaultYarn(ModelConfig* config) {
  config->rope.kind = ops::RopeKind::kYarn;
  config->rope.factor = 32;
  config->rope.original_max_positions = 4096;
  config->rope.truncate = false;
}

void ReadGptOss(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, config);
  config->expert_intermediate = reader.Int("intermediate_size", std::nullopt, {1, kMaxIntermediate});
  config->renormalize = true;
  config->qkv_bias = config->o_bias = reader.Bool("attention_bias", true);
  config->ffn_bias = config->router_logit_bias = config->attention_sinks = config->norm_rounds_once = true;
  config->glu_clamp.limit = reader.Number("swiglu_limit", 7.0, 0, kMostOfActivation, /*open=*/true);
  config->glu_clamp.alpha = reader.Number("swiglu_alpha", 1.702, 0, kMostOfActivation, /*open=*/true);
  if (!reader.Has("rope_parameters") && !reader.Has("rope_scaling")) UseDefaultYarn(config);
  const auto window = static_cast<int32_t>(reader.Int("sliding_window", 128, {1, kMaxWindow}));
  if (ReadLayerTypes(reader, window, config)) return;
  for (int64_t i = 0; i < config->num_layers(); i += 2) config->layers[i].window = window;
}

}  // namespace

const ModelFamily kGptOssFamily = {
    .model_type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .read_config = ReadGptOss,
    .moe = {.router = {"model.layers.{i}.mlp.router.weight", nullptr},
            .router_logit_bias = "model.layers.{i}.mlp.router.bias",
            .fused_transposed = true,
            .fused_gate_up_bias = "model.layers.{i}.mlp.experts.gate_up_proj_bias",
            .fused_down_bias = "model.layers.{i}.mlp.experts.down_proj_bias"},
    .default_theta = 150000,
    .default_norm_eps = 1e-5,
};

}  // namespace switchyard::model
