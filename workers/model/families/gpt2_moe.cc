// GPT-2 with experts, as the papers on training use it: learned positions, LayerNorm, attention with biases on all of
// its products, GELU feed-forwards with biases, every n-th of them a MoE block with top-1 or top-2 routing; a tied
// head.
//
// There is no such model in transformers: config.json and names are ours (workers/model/README.md).
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "workers/model/families/family.h"

namespace switchyard::model {
namespace {

void ReadConfig(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, config);
  ReadSparseLayers(reader, config);
  config->expert_intermediate = reader.Int("moe_intermediate_size", std::nullopt, {1, kMaxIntermediate});
  config->renormalize = reader.Bool("norm_topk_prob", false);
  // (The key and its values are DeepSeek-V3's, and so is the bias's name; the scores are probabilities here.)
  const std::string method = reader.String("topk_method", "greedy");
  config->router_bias = method == "noaux_tc";
  if (!config->router_bias && method != "greedy") {
    reader.Problem("topk_method", absl::StrCat("unknown method \"", Excerpt(method), "\"; known: greedy, noaux_tc"));
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
    .read_config = ReadConfig,
    .moe = {.router = {"model.layers.{i}.mlp.gate.weight", nullptr},
            .expert_gate = nullptr,
            .expert_up = "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
            .expert_down = "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
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
};

}  // namespace switchyard::model
