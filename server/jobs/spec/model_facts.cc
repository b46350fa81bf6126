#include "server/jobs/spec/model_facts.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::server {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kMaxKeys = 4096;
constexpr int64_t kMost = int64_t{1} << 32;

// workers/model/families has the same ones; what they do not train they say themselves.
constexpr absl::string_view kGpt2Moe = "Gpt2MoeForCausalLM";
constexpr absl::string_view kArchitectures[] = {kGpt2Moe, "MixtralForCausalLM", "OlmoeForCausalLM",
                                                "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"};

class Config {
 public:
  explicit Config(const nlohmann::json& json) : json_(json) {}

  // The first of `keys` that is there; `otherwise` if none is and it is not negative.
  absl::StatusOr<int64_t> Whole(std::initializer_list<const char*> keys, int64_t otherwise) const {
    for (const char* key : keys) {
      const auto it = json_.find(key);
      if (it == json_.end() || it->is_null()) continue;
      if (const std::optional<int64_t> number = IntegerIn(*it, 0, kMost)) return *number;
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: ", key, ": ", Quote(it->dump()), " is no whole number in [0, ", kMost, "]"));
    }
    if (otherwise >= 0) return otherwise;
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", *keys.begin(), ": missing"));
  }
  bool Says(const char* key, const char* value) const {
    const auto it = json_.find(key);
    return it != json_.end() && it->is_string() && it->get<std::string>() == value;
  }
  bool Flag(const char* key) const {
    const auto it = json_.find(key);
    return it != json_.end() && it->is_boolean() && it->get<bool>();
  }

 private:
  const nlohmann::json& json_;
};

absl::StatusOr<std::string> Architecture(const nlohmann::json& json) {
  const auto list = json.find("architectures");
  if (list == json.end() || !list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return absl::InvalidArgumentError("config.json: architectures: a list of one name is wanted");
  }
  const std::string name = (*list)[0].get<std::string>();
  if (std::find(std::begin(kArchitectures), std::end(kArchitectures), name) != std::end(kArchitectures)) return name;
  std::string known;
  for (const absl::string_view one : kArchitectures) absl::StrAppend(&known, known.empty() ? "" : ", ", one);
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: architectures: ", Quote(name), " is unknown; known are ", known));
}

// Attention and experts of every layer, embedding and head; norms and routers are too few to count.
absl::StatusOr<double> CountParameters(const Config& config, const TrainedModelFacts& facts) {
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, shared = 0, dense = 0, step = 0;
  ASSIGN_OR_RETURN(hidden, config.Whole({"hidden_size"}, -1));
  ASSIGN_OR_RETURN(layers, config.Whole({"num_hidden_layers"}, -1));
  ASSIGN_OR_RETURN(heads, config.Whole({"num_attention_heads"}, -1));
  ASSIGN_OR_RETURN(kv_heads, config.Whole({"num_key_value_heads"}, heads));
  ASSIGN_OR_RETURN(head_dim, config.Whole({"head_dim"}, heads > 0 ? hidden / heads : 0));
  ASSIGN_OR_RETURN(width, config.Whole({"moe_intermediate_size", "intermediate_size"}, -1));
  ASSIGN_OR_RETURN(shared, config.Whole({"shared_expert_intermediate_size"}, 0));
  ASSIGN_OR_RETURN(dense, config.Whole({"intermediate_size"}, width));
  ASSIGN_OR_RETURN(step, config.Whole({"decoder_sparse_step"}, 1));
  const int64_t sparse = step > 0 ? layers / step : 0;  // layers with experts
  const double matrices = facts.architecture == kGpt2Moe ? 2 : 3;
  const auto h = static_cast<double>(hidden);
  const double attention = 2 * h * static_cast<double>(head_dim) * static_cast<double>(heads + kv_heads);
  const double experts = static_cast<double>(facts.experts) * static_cast<double>(width) + static_cast<double>(shared);
  const double ffn =
      static_cast<double>(sparse) * experts + static_cast<double>(layers - sparse) * static_cast<double>(dense);
  const double ends = (config.Flag("tie_word_embeddings") ? 1 : 2) * h * static_cast<double>(facts.vocab);
  return static_cast<double>(layers) * attention + matrices * h * ffn + ends;
}

}  // namespace

absl::StatusOr<TrainedModelFacts> ReadModelFacts(absl::string_view config_json) {
  nlohmann::json json;
  const std::optional<JsonFault> fault = ReadJson(config_json, LenientJson(kMaxDepth, kMaxKeys), &json);
  if (fault && fault->kind != JsonFault::Kind::kText) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", fault->depth, " levels and ", fault->keys,
                                                   " keys, at most ", kMaxDepth, " and ", kMaxKeys));
  }
  if (fault || !json.is_object()) return absl::InvalidArgumentError("config.json: is no JSON object");
  TrainedModelFacts facts;
  ASSIGN_OR_RETURN(facts.architecture, Architecture(json));
  const Config config(json);
  ASSIGN_OR_RETURN(facts.context, config.Whole({"max_position_embeddings"}, -1));
  ASSIGN_OR_RETURN(facts.vocab, config.Whole({"vocab_size"}, -1));
  ASSIGN_OR_RETURN(facts.experts, config.Whole({"num_local_experts", "num_experts"}, -1));
  facts.router_bias = facts.architecture == kGpt2Moe && config.Says("topk_method", "noaux_tc");
  ASSIGN_OR_RETURN(facts.parameters, CountParameters(config, facts));
  return facts;
}

}  // namespace switchyard::server
