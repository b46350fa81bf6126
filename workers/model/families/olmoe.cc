// OLMoE: a norm over the whole rows of q and k, then an optional clamp of q, k and v; intermediate_size is an expert's.
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadOlmoe(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, config);
  config->expert_intermediate = reader.Int("intermediate_size", std::nullopt, {1, kMaxIntermediate});
  config->renormalize = reader.Bool("norm_topk_prob", false);
  config->qk_norm = QkNorm::kWholeRow;
  config->qkv_bias = config->o_bias = reader.Bool("attention_bias", false);
  if (reader.Has("clip_qkv")) config->clip_qkv = reader.Number("clip_qkv", 0.0, 0, 1e9, /*open=*/true);
}

}  // namespace

const ModelFamily kOlmoeFamily = {
    .model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .read_config = ReadOlmoe,
    .default_norm_eps = 1e-5,
};

}  // namespace switchyard::model
