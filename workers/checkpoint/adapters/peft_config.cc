#include "workers/checkpoint/adapters/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/adapters/fused_experts.h"

namespace switchyard::checkpoint {
namespace {

constexpr int kMaxConfigDepth = 16;
constexpr int64_t kMaxRank = 1 << 16;
constexpr size_t kMaxShown = 64;  // bytes of a value in a message

using Version = std::array<int, 3>;
// The first whose lora_A of experts [E, n, k] is over their inputs k.  Those before have A [E r, n] and B [k, r E],
// which is that of the transposed matrices.
constexpr Version kFirstVersion = {0, 19, 1};

absl::Status Refuse(absl::string_view key, absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat(kPeftConfigName, ": ", key, ": ", why));
}

absl::Status Bad(absl::string_view key, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(kPeftConfigName, ": ", key, ": ", wanted));
}

std::string Short(const nlohmann::json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true).substr(0, kMaxShown);
}

// Whether a key is missing or has a value that says nothing: null, false, "none", [] or {}.
bool SaysNothing(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() || *found == false || *found == "none" || *found == "" ||
         ((found->is_array() || found->is_object()) && found->empty());
}

// Whether a version, "0.21.2" or "0.20.0.dev0@1a2b", is kFirstVersion or later; false for a text that is none.
bool IsNewEnough(absl::string_view text) {
  Version version = {};
  absl::string_view rest = text.substr(0, text.find('@'));
  for (size_t i = 0; i < version.size(); ++i) {
    const absl::string_view number = rest.substr(0, rest.find_first_not_of("0123456789"));
    if (i == 0 && number.empty()) return false;
    if (number.empty() || !absl::SimpleAtoi(number, &version[i])) break;
    rest.remove_prefix(number.size());
    if (i + 1 < version.size() && (!absl::ConsumePrefix(&rest, "."))) break;
  }
  if (version != kFirstVersion) return version > kFirstVersion;
  // Other endings (dev, rc) mean a version before these numbers.
  return rest.empty() || absl::StartsWith(rest, ".post") || absl::StartsWith(rest, "+");
}

// Which parameter of fused experts a pattern of PEFT's means in all layers: "gate_up_proj", "mlp.experts.gate_up_proj"
// or, among ranks and alphas, as PEFT writes it, ".*\.gate_up_proj".
struct ExpertPattern {
  std::optional<RankAndAlpha>* of = nullptr;  // null: none
  std::string projection = {};
  bool is_short = false;  // does not say that it is experts'
};
ExpertPattern ExpertsOf(absl::string_view pattern, PeftConfig* config) {
  absl::ConsumePrefix(&pattern, ".*\\.");
  ExpertPattern experts;
  experts.is_short = !absl::ConsumePrefix(&pattern, "mlp.experts.") && !absl::ConsumePrefix(&pattern, "experts.");
  experts.projection = std::string(pattern);
  if (pattern == kGateUpProj) experts.of = &config->gate_up;
  if (pattern == kDownProj) experts.of = &config->down;
  return experts;
}

absl::StatusOr<int64_t> ParseRank(absl::string_view key, const nlohmann::json& value) {
  const std::optional<int64_t> rank = IntegerIn(value, 1, kMaxRank);
  if (rank.has_value()) return *rank;
  return Bad(key, absl::StrCat("a whole number in [1, ", kMaxRank, "] is wanted"));
}

absl::StatusOr<double> ParseAlpha(absl::string_view key, const nlohmann::json& value) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return Bad(key, "a number is wanted");
}

// Fused experts, which PEFT adapts by target_parameters.
absl::Status ParseTargets(const nlohmann::json& json, PeftConfig* config) {
  constexpr char kKey[] = "target_parameters", kVersionKey[] = "peft_version";
  if (SaysNothing(json, kKey)) return absl::OkStatus();
  if (!json[kKey].is_array()) return Bad(kKey, "a list is wanted");
  for (const nlohmann::json& name : json[kKey]) {
    const ExpertPattern experts = name.is_string() ? ExpertsOf(name.get<std::string>(), config) : ExpertPattern();
    if (experts.of == nullptr) return Refuse(kKey, absl::StrCat(Short(json[kKey]), " is not supported"));
    *experts.of = config->all;
  }
  const auto version = json.find(kVersionKey);
  if (version != json.end() && version->is_string() && IsNewEnough(version->get<std::string>())) {
    return absl::OkStatus();
  }
  return Refuse(kVersionKey, absl::StrCat(version == json.end() ? "is missing" : Short(*version), "; with ", kKey,
                                          " 0.19.1 or later is wanted, as lora_A and lora_B of experts were the other "
                                          "way round before"));
}

// Ranks and alphas of fused experts, which may be others than the rest's.
absl::Status ParsePatterns(const nlohmann::json& json, const char* key, PeftConfig* config) {
  if (SaysNothing(json, key)) return absl::OkStatus();
  if (!json[key].is_object()) return Bad(key, "an object is wanted");
  std::set<std::string> seen;
  for (const auto& [pattern, value] : json[key].items()) {
    const ExpertPattern experts = ExpertsOf(pattern, config);
    if (experts.of == nullptr || !experts.of->has_value()) {
      return Refuse(key, absl::StrCat(Short(json[key]), " is not supported"));
    }
    // (PEFT uses the one that the file has first, which a parsed object no longer knows.)
    if (!seen.insert(experts.projection).second) {
      return Refuse(key, absl::StrCat(Short(json[key]), " has two patterns of ", experts.projection));
    }
    if (experts.is_short) config->short_patterns.insert(experts.projection);
    if (key == absl::string_view("rank_pattern")) {
      ASSIGN_OR_RETURN((*experts.of)->rank, ParseRank(key, value));
    } else {
      ASSIGN_OR_RETURN((*experts.of)->alpha, ParseAlpha(key, value));
    }
  }
  return absl::OkStatus();
}

// Refuses what adds more to a model than B A.
absl::Status CheckKind(const nlohmann::json& json) {
  const auto type = json.is_object() ? json.find("peft_type") : json.end();
  if (!json.is_object() || type == json.end() || *type != "LORA") {
    return absl::InvalidArgumentError(absl::StrCat(kPeftConfigName, ": peft_type: LORA is wanted"));
  }
  // (Ways to begin that also change the base, as PiSSA does, are named there.)
  if (const auto begin = json.find("init_lora_weights");
      begin != json.end() && begin->is_string() && *begin != "gaussian" && *begin != "orthogonal") {
    return Refuse("init_lora_weights", absl::StrCat(Short(*begin), " is not supported"));
  }
  for (const char* key :
       {"use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config",
        "velora_config", "monteclora_config", "lora_ga_config", "loftq_config", "corda_config", "modules_to_save",
        "bias", "lora_bias", "fan_in_fan_out", "layer_replication", "trainable_token_indices"}) {
    if (!SaysNothing(json, key)) return Refuse(key, absl::StrCat(Short(json[key]), " is not supported"));
  }
  return absl::OkStatus();
}

}  // namespace

double PeftConfig::ScaleOf(const RankAndAlpha& of) const {
  const auto rank = static_cast<double>(of.rank);
  return of.alpha / (rank_stabilized ? std::sqrt(rank) : rank);
}

absl::Status PeftConfig::CheckModule(absl::string_view module) const {
  for (const std::string& projection : short_patterns) {
    if (!absl::EndsWith(module, absl::StrCat(".", projection))) continue;
    return Refuse("rank_pattern, alpha_pattern",
                  absl::StrCat("\"", projection, "\" is also about ", module, ", for which it is not supported; ",
                               "\"mlp.experts.", projection, "\" is about experts alone"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PeftConfig> ParsePeftConfig(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(kPeftConfigName, text, LenientJson(kMaxConfigDepth)));
  RETURN_IF_ERROR(CheckKind(json));
  PeftConfig config;
  if (const auto stabilized = json.find("use_rslora"); stabilized != json.end() && !stabilized->is_null()) {
    if (!stabilized->is_boolean()) return Bad("use_rslora", "true or false is wanted");
    config.rank_stabilized = stabilized->get<bool>();
  }
  ASSIGN_OR_RETURN(config.all.rank, ParseRank("r", json.value("r", nlohmann::json())));
  ASSIGN_OR_RETURN(config.all.alpha, ParseAlpha("lora_alpha", json.value("lora_alpha", nlohmann::json())));
  RETURN_IF_ERROR(ParseTargets(json, &config));
  for (const char* key : {"rank_pattern", "alpha_pattern"}) RETURN_IF_ERROR(ParsePatterns(json, key, &config));
  return config;
}

}  // namespace switchyard::checkpoint
