#include "tests/bench/gpu/shapes.h"

namespace switchyard {

std::vector<MoeBenchShape> MoeBenchShapes(bool tiny) {
  if (tiny) return {{.model = "tiny", .hidden = 64, .ffn = 32, .experts = 8, .top_k = 2}};
  return {{.model = "Mixtral-8x7B", .hidden = 4096, .ffn = 14336, .experts = 8, .top_k = 2},
          {.model = "Qwen3-30B-A3B", .hidden = 2048, .ffn = 768, .experts = 128, .top_k = 8},
          {.model = "DeepSeek-V2-Lite", .hidden = 2048, .ffn = 1408, .experts = 64, .top_k = 6}};
}

std::vector<int64_t> MoeBenchTokens(bool tiny) {
  if (tiny) return {1, 5};
  std::vector<int64_t> tokens;
  for (int64_t t = 1; t <= 8192; t *= 2) tokens.push_back(t);
  return tokens;
}

std::vector<model::ModelConfig> BenchModels(bool tiny) {
  model::ModelConfig qwen;
  qwen.model_type = "Qwen3-30B-A3B";
  qwen.vocab_size = 151936;
  qwen.hidden = 2048;
  qwen.context = 40960;
  qwen.layers.resize(48);
  qwen.num_heads = 32;
  qwen.num_kv_heads = 4;
  qwen.head_dim = 128;
  qwen.qk_norm = model::QkNorm::kPerHead;
  qwen.rope = {.theta = 1e6, .rotary_dim = 128};
  qwen.num_experts = 128;
  qwen.top_k = 8;
  qwen.expert_intermediate = 768;
  qwen.renormalize = true;
  if (tiny) {
    model::ModelConfig small = qwen;
    small.model_type = "tiny";
    small.vocab_size = 96;
    small.hidden = small.context = 64;
    small.layers.resize(2);
    small.num_heads = 2;
    small.num_kv_heads = 1;
    small.head_dim = small.rope.rotary_dim = 64;
    small.num_experts = 4;
    small.top_k = 2;
    small.expert_intermediate = 32;
    return {small};
  }

  qwen.model_type = "Qwen3-30B-A3B, 8 layers";  // all 48 are only made in minutes
  qwen.layers.resize(8);
  model::ModelConfig olmoe = qwen;  // of the same hidden size, head size and top-k
  olmoe.model_type = "OLMoE-1B-7B";
  olmoe.vocab_size = 50304, olmoe.context = 4096;
  olmoe.layers.resize(16);
  olmoe.num_heads = olmoe.num_kv_heads = 16;
  olmoe.qk_norm = model::QkNorm::kWholeRow, olmoe.norm_eps = 1e-5;
  olmoe.rope.theta = 1e4;
  olmoe.num_experts = 64, olmoe.expert_intermediate = 1024, olmoe.renormalize = false;
  return {qwen, olmoe};
}

}  // namespace switchyard
