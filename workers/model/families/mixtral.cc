// Mixtral: GQA without biases, one window for all layers, routing weights always renormalised.
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadMixtral(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, config);
  config->expert_intermediate = reader.Int("intermediate_size", std::nullopt, {1, kMaxIntermediate});
  config->renormalize = true;
  const auto window = static_cast<int32_t>(reader.Int("sliding_window", 0, {0, kMaxWindow}));
  for (LayerConfig& layer : config->layers) layer.window = window;
}

}  // namespace

const ModelFamily kMixtralFamily = {
    .model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .read_config = ReadMixtral,
    .moe = {.router = {"model.layers.{i}.block_sparse_moe.gate.weight", "model.layers.{i}.mlp.gate.weight"},
            .expert_gate = "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
            .expert_up = "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
            .expert_down = "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight"},
    .default_theta = 1e6,
    .default_norm_eps = 1e-5,
    .noise = {.router_jitter = "router_jitter_noise"},
};

}  // namespace switchyard::model
