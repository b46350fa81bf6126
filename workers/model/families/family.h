// A model family: a constant table with how its config.json reads and what its checkpoint calls its tensors.  One file
// each; to add one, see workers/model/README.md.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/model/config/config.h"
#include "workers/model/config/config_reader.h"

namespace switchyard::model {

// Names of one MoE block's tensors.  "{i}" stands for the layer, "{e}" for the expert.  A checkpoint uses either
// per-expert tensors or fused ones.  The bias of "….weight" is "….bias".  A family whose feed-forwards have no gate has
// null for the gate's name and for the fused ones.
// The defaults are the names of the Qwen families and OLMoE, and of all models that transformers v5 holds in memory.
struct MoeNaming {
  // [E, H]; the second spelling may be null
  std::array<const char*, 2> router = {"model.layers.{i}.mlp.gate.weight", nullptr};
  const char* expert_gate = "model.layers.{i}.mlp.experts.{e}.gate_proj.weight";  // [F, H]
  const char* expert_up = "model.layers.{i}.mlp.experts.{e}.up_proj.weight";      // [F, H]
  const char* expert_down = "model.layers.{i}.mlp.experts.{e}.down_proj.weight";  // [H, F]
  const char* fused_gate_up = "model.layers.{i}.mlp.experts.gate_up_proj";        // [E, 2F, H], gate rows first
  const char* fused_down = "model.layers.{i}.mlp.experts.down_proj";              // [E, H, F]
  const char* router_bias = nullptr;                                              // [E], where ModelConfig::router_bias
  const char* router_logit_bias = nullptr;  // [E], where ModelConfig::router_logit_bias
  // Fused tensors are [E, H, 2F], in whose columns gate and up take turns, and [E, F, H]; where they are quantized, the
  // same transposed.  Then only a GGUF file has per-expert ones, with biases.
  bool fused_transposed = false;
  const char* fused_gate_up_bias = nullptr;  // [E, 2F], gate and up by turns; where ModelConfig::ffn_bias
  const char* fused_down_bias = nullptr;     // [E, H]
};

// An activation and its name in config.json.
struct NamedActivation {
  const char* name;
  ops::Activation activation;
};
inline constexpr NamedActivation kSwiGluNames[] = {{"silu", ops::Activation::kSwiGlu},
                                                   {"swish", ops::Activation::kSwiGlu}};

struct ModelFamily {
  const char* model_type;    // config.json's model_type
  const char* architecture;  // its architectures[0]
  // Fills all fields but those that all families share, which ReadCommonConfig has filled.
  void (*read_config)(ConfigReader& reader, ModelConfig* config);
  MoeNaming moe = {};
  double default_theta = 1e4;
  double default_norm_eps = 1e-6;
  absl::Span<const NamedActivation> activations = kSwiGluNames;  // known ones, the default first
  NormKind norm = NormKind::kRms;
  const char* norm_eps_key = "rms_norm_eps";
  bool learned_positions = false;
  bool tied_by_default = false;
  NoiseKeys noise = {};
};

extern const ModelFamily kMixtralFamily;
extern const ModelFamily kQwen2MoeFamily;
extern const ModelFamily kQwen3MoeFamily;
extern const ModelFamily kOlmoeFamily;
extern const ModelFamily kGpt2MoeFamily;
extern const ModelFamily kGptOssFamily;

absl::Span<const ModelFamily* const> ModelFamilies();
// nullptr if there is none of that name.
const ModelFamily* FindFamily(absl::string_view model_type);

inline constexpr int64_t kMaxIntermediate = 1 << 20;
inline constexpr int64_t kMaxWindow = 1 << 30;

// Pieces that several families share.
// Reads num_experts in any spelling and num_experts_per_tok.
void ReadExperts(ConfigReader& reader, ModelConfig* config);
// The same with moe_intermediate_size, and which layers are MoE by mlp_only_layers and decoder_sparse_step (Qwen).
void ReadSparseExperts(ConfigReader& reader, ModelConfig* config);
// Reads layer_types, if the file has them: sets the window of "sliding_attention" layers; returns whether it did.
bool ReadLayerTypes(ConfigReader& reader, int32_t window, ModelConfig* config);

}  // namespace switchyard::model
