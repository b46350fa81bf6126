// Qwen3-MoE: a norm over each head of q and k, head_dim of its own, no shared expert, dense layers between.
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadQwen3Moe(ConfigReader& reader, ModelConfig* config) {
  ReadSparseExperts(reader, config);
  config->renormalize = reader.Bool("norm_topk_prob", false);
  config->qk_norm = QkNorm::kPerHead;
  config->qkv_bias = config->o_bias = reader.Bool("attention_bias", false);
  // The window holds for every layer, or for none.
  const auto window = static_cast<int32_t>(reader.Int("sliding_window", 0, {0, kMaxWindow}));
  if (!reader.Bool("use_sliding_window", false)) return;
  for (LayerConfig& layer : config->layers) layer.window = window;
}

}  // namespace

const ModelFamily kQwen3MoeFamily = {
    .model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .read_config = ReadQwen3Moe,
};

}  // namespace switchyard::model
