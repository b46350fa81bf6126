#include "workers/checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/gguf/gguf_architectures.h"

namespace switchyard::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;
constexpr char kFrequencies[] = "rope_freqs.weight";
constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr const char* kEndKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                    "tokenizer.ggml.eom_token_id"};

// Writes the config of one checkpoint, a part of it by each method.
class ConfigWriter {
 public:
  ConfigWriter(const GgufCheckpoint& checkpoint, const GgufArchitecture& architecture, const GgufShape& shape)
      : checkpoint_(checkpoint), metadata_(checkpoint.metadata()), architecture_(architecture), shape_(shape) {}

  absl::StatusOr<std::string> Write() {
    RETURN_IF_ERROR(WriteShape());
    RETURN_IF_ERROR(WriteExperts());
    RETURN_IF_ERROR(WriteAttention());
    RETURN_IF_ERROR(WriteRope());
    RETURN_IF_ERROR(WriteTokens());
    return config_.dump(2) + "\n";
  }

 private:
  std::string Key(absl::string_view name) const { return GgufArchitectureKey(architecture_, name); }
  static std::string BlockTensor(int64_t block, absl::string_view name) {
    return absl::StrCat("blk.", block, ".", name);
  }
  bool HasTensor(const std::string& name) const { return checkpoint_.Find(name).file != nullptr; }
  // A dimension of a tensor of `rank` dimensions, counted from the innermost.
  absl::StatusOr<int64_t> DimOf(const std::string& name, size_t rank, size_t from_last) const;
  absl::Status WriteShape();
  absl::Status WriteExperts();
  absl::StatusOr<int64_t> ExpertWidth(int64_t block) const;
  absl::Status WriteAttention();
  absl::Status WriteWindows();
  absl::Status WriteRope();
  absl::Status WriteScaling(const std::string& type);
  absl::Status WriteFrequencies();
  absl::Status WriteTokens();

  const GgufCheckpoint& checkpoint_;
  const GgufMetadata& metadata_;
  const GgufArchitecture& architecture_;
  const GgufShape& shape_;
  Json config_;
};

absl::StatusOr<int64_t> ConfigWriter::DimOf(const std::string& name, size_t rank, size_t from_last) const {
  const GgufLocation place = checkpoint_.Find(name);
  if (place.file == nullptr) return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": is missing"));
  const std::vector<int64_t>& shape = place.tensor->shape;
  if (shape.size() == rank) return shape[rank - 1 - from_last];
  return absl::InvalidArgumentError(
      absl::StrCat("tensor \"", name, "\": expected ", rank, " dimensions, found ", place.tensor->ShapeString()));
}

absl::Status ConfigWriter::WriteShape() {
  config_["architectures"] = Json::array({architecture_.hf_architecture});
  config_["model_type"] = architecture_.model_type;
  ASSIGN_OR_RETURN(config_["vocab_size"], DimOf("token_embd.weight", 2, 1));
  config_["hidden_size"] = shape_.hidden;
  config_["num_hidden_layers"] = shape_.num_blocks;
  ASSIGN_OR_RETURN(config_["max_position_embeddings"], metadata_.Int(Key("context_length")));
  ASSIGN_OR_RETURN(config_["rms_norm_eps"], metadata_.Number(Key("attention.layer_norm_rms_epsilon")));
  config_["hidden_act"] = "silu";
  config_["tie_word_embeddings"] = !HasTensor("output.weight");
  const absl::string_view stored = checkpoint_.Find("token_embd.weight").tensor->format->name;
  config_["torch_dtype"] = stored == "F32" ? "float32" : stored == "F16" ? "float16" : "bfloat16";
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ConfigWriter::ExpertWidth(int64_t block) const {
  if (const std::string name = BlockTensor(block, "ffn_up_exps.weight"); HasTensor(name)) return DimOf(name, 3, 1);
  if (const std::string name = BlockTensor(block, "ffn_gate_up_exps.weight"); HasTensor(name)) {
    ASSIGN_OR_RETURN(const int64_t both, DimOf(name, 3, 1));
    return both / 2;
  }
  return DimOf(BlockTensor(block, "ffn_up.0.weight"), 2, 1);
}

absl::Status ConfigWriter::WriteExperts() {
  std::vector<int64_t> dense;
  int64_t moe_block = -1;
  for (int64_t i = 0; i < shape_.num_blocks; ++i) {
    if (HasTensor(BlockTensor(i, "ffn_gate_inp.weight"))) {
      moe_block = i;
    } else {
      dense.push_back(i);
    }
  }
  const bool may_be_dense = absl::string_view(architecture_.expert_width_key) != "intermediate_size";
  if (moe_block < 0 || (!may_be_dense && !dense.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", BlockTensor(dense.front(), "ffn_gate_inp.weight"),
                                                   "\": is missing, the router of a block"));
  }
  config_[architecture_.num_experts_key] = shape_.num_experts;
  ASSIGN_OR_RETURN(config_["num_experts_per_tok"], metadata_.Int(Key("expert_used_count")));
  ASSIGN_OR_RETURN(config_[architecture_.expert_width_key], ExpertWidth(moe_block));
  if (may_be_dense) {
    ASSIGN_OR_RETURN(config_["intermediate_size"],
                     metadata_.Int(Key("feed_forward_length"), config_[architecture_.expert_width_key].get<int64_t>()));
    config_["decoder_sparse_step"] = 1;
    config_["mlp_only_layers"] = dense;
  }
  if (const std::string name = BlockTensor(moe_block, "ffn_up_shexp.weight"); HasTensor(name)) {
    ASSIGN_OR_RETURN(config_["shared_expert_intermediate_size"], DimOf(name, 2, 1));
  }
  ASSIGN_OR_RETURN(const bool renormalize, metadata_.Bool(Key("expert_weights_norm"), architecture_.renormalize));
  if (architecture_.says_renormalize) {
    config_["norm_topk_prob"] = renormalize;
  } else if (renormalize != architecture_.renormalize) {
    return absl::UnimplementedError(
        absl::StrCat("key \"", Key("expert_weights_norm"), "\": false, but models of this family renormalize"));
  }
  // 0: the family's own (llama.cpp).
  ASSIGN_OR_RETURN(const int64_t gating, metadata_.Int(Key("expert_gating_func"), 0));
  ASSIGN_OR_RETURN(const double scale, metadata_.Number(Key("expert_weights_scale"), 1.0));
  if (gating != 0 && gating != architecture_.gating) {
    const char* const of = architecture_.gating == kGgufSoftmax ? "softmax" : "softmax of the chosen experts' logits";
    return absl::UnimplementedError(absl::StrCat("key \"", Key("expert_gating_func"), "\": expected ", of, " (",
                                                 architecture_.gating, "), found ", gating));
  }
  if (scale == 0 || scale == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("key \"", Key("expert_weights_scale"), "\": expected 1, found ", scale));
}

absl::Status ConfigWriter::WriteAttention() {
  config_["num_attention_heads"] = shape_.num_heads;
  config_["num_key_value_heads"] = shape_.num_kv_heads;
  config_["head_dim"] = shape_.head_dim;
  const bool has_biases = HasTensor("blk.0.attn_q.bias");
  if (architecture_.bias_key != nullptr) {
    config_[architecture_.bias_key] = has_biases;
  } else if (has_biases) {
    return absl::UnimplementedError("tensor \"blk.0.attn_q.bias\": attention of this family has no biases");
  }
  const std::string clamp_key = Key("attention.clamp_kqv");
  ASSIGN_OR_RETURN(const double clamp, metadata_.Number(clamp_key, 0.0));
  if (clamp > 0 && !architecture_.clamps) {
    return absl::UnimplementedError(
        absl::StrCat("key \"", clamp_key, "\": ", clamp, ", but this family clamps nothing"));
  }
  if (clamp > 0) config_["clip_qkv"] = clamp;
  return WriteWindows();
}

absl::Status ConfigWriter::WriteWindows() {
  const std::string key = Key("attention.sliding_window");
  const bool always = architecture_.windows == GgufWindows::kEverySecond;
  ASSIGN_OR_RETURN(const int64_t window, metadata_.Int(key, always ? std::nullopt : std::optional<int64_t>(0)));
  if (always && window < 1) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\": expected at least 1, found ", window));
  }
  if (window == 0) return absl::OkStatus();
  if (architecture_.windows == GgufWindows::kNone) {
    return absl::UnimplementedError(absl::StrCat("key \"", key, "\": ", window, ", but this family has no window"));
  }
  config_["sliding_window"] = window;
  config_["use_sliding_window"] = true;
  const std::string pattern_key = Key("attention.sliding_window_pattern");
  std::vector<bool> pattern(static_cast<size_t>(shape_.num_blocks), true);
  if (always) {
    for (size_t i = 1; i < pattern.size(); i += 2) pattern[i] = false;
  }
  if (const GgufValue* const found = metadata_.Find(pattern_key); found != nullptr) {
    const std::optional<std::vector<bool>> bools = found->Bools();
    if (!bools.has_value() || bools->size() != pattern.size()) {
      return absl::InvalidArgumentError(absl::StrCat("key \"", pattern_key, "\": expected an array of ", pattern.size(),
                                                     " bools, found ", found->Description()));
    }
    pattern = *bools;
  }
  const bool everywhere = std::find(pattern.begin(), pattern.end(), false) == pattern.end();
  if (architecture_.windows == GgufWindows::kAllLayers) {
    if (everywhere) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("key \"", pattern_key, "\": this family has the window in every layer"));
  }
  for (const bool sliding : pattern) config_["layer_types"].push_back(sliding ? "sliding_attention" : "full_attention");
  return absl::OkStatus();
}

absl::Status ConfigWriter::WriteRope() {
  ASSIGN_OR_RETURN(config_["rope_theta"], metadata_.Number(Key("rope.freq_base"), 10'000.0));
  const std::string key = Key("rope.dimension_count");
  ASSIGN_OR_RETURN(const int64_t rotated, metadata_.Int(key, shape_.head_dim));
  if (rotated != shape_.head_dim) {
    return absl::UnimplementedError(
        absl::StrCat("key \"", key, "\": expected all ", shape_.head_dim, " elements of a head, found ", rotated));
  }
  if (HasTensor(kFrequencies)) return WriteFrequencies();
  ASSIGN_OR_RETURN(const std::string type, metadata_.String(Key("rope.scaling.type"), "none"));
  if (type != "none") return WriteScaling(type);
  config_["rope_scaling"] = {{"rope_type", "default"}};  // without it gpt-oss has YaRN
  return absl::OkStatus();
}

absl::Status ConfigWriter::WriteScaling(const std::string& type) {
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(absl::StrCat(
        "key \"", Key("rope.scaling.type"), "\": expected none, linear or yarn, ", "found \"", Excerpt(type), "\""));
  }
  Json scaling = {{"rope_type", type}};
  ASSIGN_OR_RETURN(scaling["factor"], metadata_.Number(Key("rope.scaling.factor")));
  if (type == "yarn") {
    ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"],
                     metadata_.Int(Key("rope.scaling.original_context_length")));
    constexpr std::pair<const char*, const char*> kNumbers[] = {{"rope.scaling.yarn_attn_factor", "attention_factor"},
                                                                {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                                                {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    for (const auto& [gguf, hf] : kNumbers) {
      if (!metadata_.Has(Key(gguf))) continue;
      ASSIGN_OR_RETURN(scaling[hf], metadata_.Number(Key(gguf)));
    }
    if (!architecture_.truncates_yarn) scaling["truncate"] = false;
  } else {
    // context_length has the factor in it already.
    scaling["original_max_position_embeddings"] =
        std::max(1.0, config_["max_position_embeddings"].get<double>() / scaling["factor"].get<double>());
  }
  config_["rope_scaling"] = std::move(scaling);
  return absl::OkStatus();
}

// Frequency i is divided by the tensor's element i, at every position.
absl::Status ConfigWriter::WriteFrequencies() {
  const GgufLocation place = checkpoint_.Find(kFrequencies);
  const GgufTensor& tensor = *place.tensor;
  if (absl::string_view(tensor.format->name) != "F32" || tensor.shape.size() != 1 ||
      tensor.shape[0] != shape_.head_dim / 2) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", kFrequencies, "\": expected F32 [", shape_.head_dim / 2,
                                                   "], found ", tensor.format->name, " ", tensor.ShapeString()));
  }
  std::vector<float> factors(static_cast<size_t>(tensor.shape[0]));
  RETURN_IF_ERROR(place.file->file().Read(tensor.begin, tensor.bytes, factors.data()));
  config_["rope_scaling"] = {
      {"rope_type", "longrope"}, {"factor", 1.0},
      {"attention_factor", 1.0}, {"original_max_position_embeddings", config_["max_position_embeddings"]},
      {"short_factor", factors}, {"long_factor", factors}};
  return absl::OkStatus();
}

absl::Status ConfigWriter::WriteTokens() {
  const auto add = [&](const std::string& key, Json* ids) -> absl::Status {
    if (!metadata_.Has(key)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t id, metadata_.Int(key));
    if (id < 0 || id > kMaxTokenId) {
      return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\": expected a token's id, found ", id));
    }
    if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
    return absl::OkStatus();
  };
  Json begin = Json::array();
  RETURN_IF_ERROR(add("tokenizer.ggml.bos_token_id", &begin));
  if (!begin.empty()) config_["bos_token_id"] = begin[0];
  Json ends = Json::array();
  for (const char* key : kEndKeys) RETURN_IF_ERROR(add(key, &ends));
  if (const GgufValue* const tokens = metadata_.Find(kTokensKey); tokens != nullptr && !architecture_.ends.empty()) {
    const std::vector<absl::string_view> texts = tokens->Strings().value_or(std::vector<absl::string_view>());
    for (const char* end : architecture_.ends) {
      const auto found = std::find(texts.begin(), texts.end(), end);
      if (found == texts.end()) continue;
      if (const Json id = found - texts.begin(); std::find(ends.begin(), ends.end(), id) == ends.end()) {
        ends.push_back(id);
      }
    }
  }
  if (!ends.empty()) config_["eos_token_id"] = std::move(ends);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> GgufConfigText(const GgufCheckpoint& checkpoint) {
  const std::string& first = checkpoint.files().front()->name();
  const absl::StatusOr<const GgufArchitecture*> architecture = FindGgufArchitecture(checkpoint.metadata());
  if (!architecture.ok()) return InFile(first, architecture.status());
  const absl::StatusOr<GgufShape> shape = ReadGgufShape(**architecture, checkpoint.metadata());
  if (!shape.ok()) return InFile(first, shape.status());
  absl::StatusOr<std::string> text = ConfigWriter(checkpoint, **architecture, *shape).Write();
  if (!text.ok()) return InFile(first, text.status());
  return text;
}

}  // namespace switchyard::checkpoint
