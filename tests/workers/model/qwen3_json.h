// A valid config.json of Qwen3-MoE, for tests that change one field of it.
#pragma once

#include "nlohmann/json.hpp"

namespace switchyard::model {

inline nlohmann::json Qwen3() {
  return {{"model_type", "qwen3_moe"}, {"architectures", {"Qwen3MoeForCausalLM"}},
          {"vocab_size", 100},         {"hidden_size", 64},
          {"num_hidden_layers", 4},    {"num_attention_heads", 4},
          {"num_key_value_heads", 2},  {"head_dim", 32},
          {"intermediate_size", 96},   {"moe_intermediate_size", 48},
          {"num_experts", 8},          {"num_experts_per_tok", 2},
          {"norm_topk_prob", true},    {"max_position_embeddings", 512},
          {"rope_theta", 1000000.0},   {"torch_dtype", "bfloat16"},
          {"eos_token_id", 7},         {"decoder_sparse_step", 2},
          {"mlp_only_layers", {3}},    {"rms_norm_eps", 1e-6}};
}

}  // namespace switchyard::model
