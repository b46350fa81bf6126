#include "workers/checkpoint/gguf/gguf_architectures.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::checkpoint {
namespace {

constexpr char kRouter[] = "model.layers.{i}.mlp.gate.weight";
constexpr char kExpertGate[] = "model.layers.{i}.mlp.experts.{e}.gate_proj.weight";
constexpr char kExpertUp[] = "model.layers.{i}.mlp.experts.{e}.up_proj.weight";
constexpr char kExpertDown[] = "model.layers.{i}.mlp.experts.{e}.down_proj.weight";
constexpr const char* kHarmonyEnds[] = {"<|return|>", "<|call|>", "<|endoftext|>"};
constexpr int64_t kMaxDim = 1 << 24;

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "mixtral",
     .hf_architecture = "MixtralForCausalLM",
     .num_experts_key = "num_local_experts",
     .expert_width_key = "intermediate_size",
     .bias_key = nullptr,
     .says_renormalize = false,
     .renormalize = true,
     .interleaved_rope = true,
     .windows = GgufWindows::kAllLayers,
     .clamps = false,
     .router = "model.layers.{i}.block_sparse_moe.gate.weight",
     .expert_gate = "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
     .expert_up = "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
     .expert_down = "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight"},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .hf_architecture = "Qwen2MoeForCausalLM",
     .num_experts_key = "num_experts",
     .expert_width_key = "moe_intermediate_size",
     .bias_key = "qkv_bias",
     .says_renormalize = true,
     .renormalize = false,
     .interleaved_rope = false,
     .windows = GgufWindows::kByLayer,
     .clamps = false,
     .router = kRouter,
     .expert_gate = kExpertGate,
     .expert_up = kExpertUp,
     .expert_down = kExpertDown},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .hf_architecture = "Qwen3MoeForCausalLM",
     .num_experts_key = "num_experts",
     .expert_width_key = "moe_intermediate_size",
     .bias_key = "attention_bias",
     .says_renormalize = true,
     .renormalize = true,
     .interleaved_rope = false,
     .windows = GgufWindows::kAllLayers,
     .clamps = false,
     .router = kRouter,
     .expert_gate = kExpertGate,
     .expert_up = kExpertUp,
     .expert_down = kExpertDown},
    {.name = "olmoe",
     .model_type = "olmoe",
     .hf_architecture = "OlmoeForCausalLM",
     .num_experts_key = "num_experts",
     .expert_width_key = "intermediate_size",
     .bias_key = "attention_bias",
     .says_renormalize = true,
     .renormalize = false,
     .interleaved_rope = false,
     .windows = GgufWindows::kNone,
     .clamps = true,
     .router = kRouter,
     .expert_gate = kExpertGate,
     .expert_up = kExpertUp,
     .expert_down = kExpertDown},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .hf_architecture = "GptOssForCausalLM",
     .num_experts_key = "num_local_experts",
     .expert_width_key = "intermediate_size",
     .bias_key = "attention_bias",
     .says_renormalize = false,
     .renormalize = true,
     .interleaved_rope = false,
     .windows = GgufWindows::kEverySecond,
     .clamps = false,
     .truncates_yarn = false,
     .gating = kGgufSoftmaxOfChosen,
     .ends = kHarmonyEnds,
     .router = "model.layers.{i}.mlp.router.weight",
     .expert_gate = kExpertGate,
     .expert_up = kExpertUp,
     .expert_down = kExpertDown},
};

absl::StatusOr<int64_t> Dimension(const GgufMetadata& metadata, const std::string& key, int64_t limit,
                                  std::optional<int64_t> fallback = std::nullopt) {
  ASSIGN_OR_RETURN(const int64_t value, metadata.Int(key, fallback));
  if (value >= 1 && value <= limit) return value;
  return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\": expected 1 to ", limit, ", found ", value));
}

}  // namespace

absl::Span<const GgufArchitecture> GgufArchitectures() { return kArchitectures; }

absl::StatusOr<const GgufArchitecture*> FindGgufArchitecture(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  std::vector<std::string> known;
  for (const GgufArchitecture& each : kArchitectures) {
    known.push_back(absl::StrCat(each.name, " (", each.model_type, ")"));
    if (name != each.name) continue;
    ASSIGN_OR_RETURN(const int64_t experts, metadata.Int(GgufArchitectureKey(each, "expert_count"), 0));
    if (experts > 0) return &each;
    return absl::UnimplementedError(absl::StrCat("key \"", GgufArchitectureKey(each, "expert_count"), "\": ", experts,
                                                 "; a model of architecture \"", name,
                                                 "\" without experts is not supported"));
  }
  return absl::UnimplementedError(absl::StrCat("key \"general.architecture\": unknown architecture \"", Excerpt(name),
                                               "\"; known: ", absl::StrJoin(known, ", ")));
}

std::string GgufArchitectureKey(const GgufArchitecture& architecture, absl::string_view key) {
  return absl::StrCat(architecture.name, ".", key);
}

absl::StatusOr<GgufShape> ReadGgufShape(const GgufArchitecture& architecture, const GgufMetadata& metadata) {
  const auto key = [&](absl::string_view name) { return GgufArchitectureKey(architecture, name); };
  GgufShape shape;
  ASSIGN_OR_RETURN(shape.num_blocks, Dimension(metadata, key("block_count"), kMaxGgufBlocks));
  ASSIGN_OR_RETURN(shape.num_experts, Dimension(metadata, key("expert_count"), kMaxGgufExperts));
  ASSIGN_OR_RETURN(shape.hidden, Dimension(metadata, key("embedding_length"), kMaxDim));
  ASSIGN_OR_RETURN(shape.num_heads, Dimension(metadata, key("attention.head_count"), kMaxDim));
  ASSIGN_OR_RETURN(shape.num_kv_heads, Dimension(metadata, key("attention.head_count_kv"), kMaxDim, shape.num_heads));
  if (!metadata.Has(key("attention.key_length")) && shape.hidden % shape.num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", key("attention.head_count"), "\": ", shape.num_heads,
                                                   " does not divide the embedding length ", shape.hidden, ", and \"",
                                                   key("attention.key_length"), "\" is missing"));
  }
  ASSIGN_OR_RETURN(shape.head_dim, Dimension(metadata, key("attention.key_length"), kMaxDim,
                                             std::max<int64_t>(shape.hidden / shape.num_heads, 1)));
  ASSIGN_OR_RETURN(const int64_t value_dim,
                   Dimension(metadata, key("attention.value_length"), kMaxDim, shape.head_dim));
  if (value_dim == shape.head_dim) return shape;
  return absl::UnimplementedError(absl::StrCat("key \"", key("attention.value_length"), "\": ", value_dim,
                                               ", but heads whose keys have ", shape.head_dim,
                                               " elements must have values of as many"));
}

}  // namespace switchyard::checkpoint
