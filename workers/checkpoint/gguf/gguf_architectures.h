// The architectures of GGUF that we know: a table with what llama.cpp does without saying so in a file, and what
// HuggingFace's checkpoints of the same family call things.  Another family is one more row.  Thread-safe (constants).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/base/gguf/gguf_file.h"

namespace switchyard::checkpoint {

// Which layers of a family may have a sliding window: none, all, those that a file names (without names all), or these
// (without names every second one, the first included).
enum class GgufWindows { kNone, kAllLayers, kByLayer, kEverySecond };

// expert_gating_func
inline constexpr int64_t kGgufSoftmax = 1;          // over all experts' logits
inline constexpr int64_t kGgufSoftmaxOfChosen = 3;  // over the chosen ones'

struct GgufArchitecture {
  const char* name;             // general.architecture
  const char* model_type;       // config.json's model_type
  const char* hf_architecture;  // its architectures[0]
  // Keys of config.json.
  const char* num_experts_key;   // "num_experts"
  const char* expert_width_key;  // "moe_intermediate_size"; if it is not intermediate_size, there may be dense layers
  const char* bias_key;          // true where attention has biases; null: it has none
  bool says_renormalize;         // norm_topk_prob
  bool renormalize;              // what llama.cpp does where expert_weights_norm is not there
  // Each head's rows of q and k are stored in pairs that rotate together (0, D/2, 1, D/2 + 1 …).
  bool interleaved_rope;
  GgufWindows windows;
  bool clamps;                              // q, k and v (clip_qkv)
  bool truncates_yarn = true;               // YaRN's bounds are whole numbers, of which a file says nothing
  int64_t gating = kGgufSoftmax;            // expert_gating_func that a file may say
  absl::Span<const char* const> ends = {};  // tokens that end an answer beside those whose ids a file has
  // Names of tensors; "{i}" stands for the layer, "{e}" for the expert.
  const char* router;  // of its bias, the same with ".bias"
  const char* expert_gate;
  const char* expert_up;
  const char* expert_down;
};

absl::Span<const GgufArchitecture> GgufArchitectures();

// That of a file, by general.architecture.  Errors: Unimplemented, with the names of those that are known; a dense
// llama is one of those that are not.
absl::StatusOr<const GgufArchitecture*> FindGgufArchitecture(const GgufMetadata& metadata);

// "llama.block_count" of "block_count".
std::string GgufArchitectureKey(const GgufArchitecture& architecture, absl::string_view key);

inline constexpr int64_t kMaxGgufBlocks = 4096;  // layers
inline constexpr int64_t kMaxGgufExperts = 65'536;

// The numbers that names and rows of tensors depend on.
struct GgufShape {
  int64_t num_blocks = 0;
  int64_t num_experts = 0;
  int64_t hidden = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};
absl::StatusOr<GgufShape> ReadGgufShape(const GgufArchitecture& architecture, const GgufMetadata& metadata);

}  // namespace switchyard::checkpoint
