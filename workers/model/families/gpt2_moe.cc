// GPT-2 with experts, as papers on training use it: learned positions, LayerNorm, biases on all products of attention
// and of the GELU feed-forwards, every n-th one a MoE block with top-1 or top-2 routing; a tied head.  There is
// no such model in transformers: config.json and names are ours (workers/model/README.md).
#include "scheduler/base/text/quote.h"
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadGpt2Moe(ConfigReader& reader, ModelConfig* config) {
  ReadSparseExperts(reader, config);
  config->renormalize = reader.Bool("norm_topk_prob", false);
  // The key, its values and the bias's name are DeepSeek-V3's; the scores are probabilities here.
  const std::string method = reader.String("topk_method", "greedy");
  config->router_bias = method == "noaux_tc";
  if (!config->router_bias && method != "greedy") {
    reader.Problem("topk_method", "unknown method \"", Excerpt(method), "\"; known: greedy, noaux_tc");
  }
  config->qkv_bias = config->o_bias = config->ffn_bias = true;
}

constexpr NamedActivation kGeluNames[] = {{"gelu_new", ops::Activation::kGeluTanh},
                                          {"gelu_pytorch_tanh", ops::Activation::kGeluTanh},
                                          {"gelu", ops::Activation::kGelu}};

}  // namespace

const ModelFamily kGpt2MoeFamily = {
    .model_type = "gpt2_moe",
    .architecture = "Gpt2MoeForCausalLM",
    .read_config = ReadGpt2Moe,
    .moe = {.expert_gate = nullptr,
            .fused_gate_up = nullptr,
            .fused_down = nullptr,
            .router_bias = "model.layers.{i}.mlp.gate.e_score_correction_bias"},
    .default_theta = 0,
    .default_norm_eps = 1e-5,
    .activations = kGeluNames,
    .norm = NormKind::kLayer,
    .norm_eps_key = "layer_norm_epsilon",
    .learned_positions = true,
    .tied_by_default = true,
    .noise = {.embedding = "embd_pdrop", .hidden = "resid_pdrop", .attention = "attn_pdrop"},
};

}  // namespace switchyard::model
