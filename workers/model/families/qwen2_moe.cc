// Qwen2-MoE: biases on q, k and v, a gated shared expert, dense layers between, renormalisation by the file.
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadQwen2Moe(ConfigReader& reader, ModelConfig* config) {
  ReadSparseExperts(reader, config);
  config->shared_intermediate = reader.Int("shared_expert_intermediate_size", std::nullopt, {1, kMaxIntermediate});
  config->renormalize = reader.Bool("norm_topk_prob", false);
  config->qkv_bias = reader.Bool("qkv_bias", true);
  const auto window = static_cast<int32_t>(reader.Int("sliding_window", 0, {0, kMaxWindow}));
  const bool sliding = reader.Bool("use_sliding_window", false) && window > 0;
  const int64_t max_window_layers = reader.Int("max_window_layers", 28, {0, kMaxWindow});
  if (ReadLayerTypes(reader, sliding ? window : 0, config) || !sliding) return;
  // Without layer_types transformers alternates, beginning with a sliding layer.
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    if (i % 2 == 0 && i < max_window_layers) config->layers[i].window = window;
  }
}

}  // namespace

const ModelFamily kQwen2MoeFamily = {
    .model_type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .read_config = ReadQwen2Moe,
};

}  // namespace switchyard::model
