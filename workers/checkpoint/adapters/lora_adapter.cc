#include "workers/checkpoint/adapters/lora_adapter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/weights_file.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

constexpr char kConfig[] = "adapter_config.json", kWeights[] = "adapter_model.safetensors";
constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 16;

constexpr int64_t kMaxRank = 1 << 16;
constexpr size_t kMaxShown = 64;  // bytes of a value in a message

// Of the adapters of one kind.
struct RankAndAlpha {
  int64_t rank = 0;
  double alpha = 0;
};

struct AdapterConfig {
  RankAndAlpha all = {};
  std::optional<RankAndAlpha> gate_up = {}, down = {};  // of fused experts; unset: they are not adapted
  bool rank_stabilized = false;                         // alpha / sqrt(rank), not alpha / rank

  double ScaleOf(const RankAndAlpha& of) const {
    const auto rank = static_cast<double>(of.rank);
    return of.alpha / (rank_stabilized ? std::sqrt(rank) : rank);
  }
};

absl::Status Refuse(absl::string_view key, absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat(kConfig, ": ", key, ": ", why));
}

absl::Status Bad(absl::string_view key, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(kConfig, ": ", key, ": ", wanted));
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

// Which parameter of fused experts a pattern of PEFT's means in all layers: "gate_up_proj", "mlp.experts.gate_up_proj"
// or, among ranks and alphas, as PEFT writes it, ".*\.gate_up_proj".  Null: none.
std::optional<RankAndAlpha>* ExpertsOf(absl::string_view pattern, AdapterConfig* config) {
  for (const absl::string_view prefix : {".*\\.", "mlp.", "experts."}) absl::ConsumePrefix(&pattern, prefix);
  if (pattern == kGateUpProj) return &config->gate_up;
  return pattern == kDownProj ? &config->down : nullptr;
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

// Fused experts, which PEFT adapts by target_parameters; their ranks and alphas may be others than the rest's.
absl::Status ParseExperts(const nlohmann::json& json, AdapterConfig* config) {
  const auto unknown = [&](const char* key) {
    return Refuse(key, absl::StrCat(Short(json[key]), " is not supported"));
  };
  if (!SaysNothing(json, "target_parameters")) {
    if (!json["target_parameters"].is_array()) return Bad("target_parameters", "a list is wanted");
    for (const nlohmann::json& name : json["target_parameters"]) {
      auto* const experts = name.is_string() ? ExpertsOf(name.get<std::string>(), config) : nullptr;
      if (experts == nullptr) return unknown("target_parameters");
      *experts = config->all;
    }
  }
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (SaysNothing(json, key)) continue;
    if (!json[key].is_object()) return Bad(key, "an object is wanted");
    for (const auto& [pattern, value] : json[key].items()) {
      auto* const experts = ExpertsOf(pattern, config);
      if (experts == nullptr || !experts->has_value()) return unknown(key);
      if (key == absl::string_view("rank_pattern")) {
        ASSIGN_OR_RETURN((*experts)->rank, ParseRank(key, value));
      } else {
        ASSIGN_OR_RETURN((*experts)->alpha, ParseAlpha(key, value));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AdapterConfig> ParseConfig(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(kConfig, text, LenientJson(kMaxConfigDepth)));
  const auto type = json.is_object() ? json.find("peft_type") : json.end();
  if (!json.is_object() || type == json.end() || *type != "LORA") {
    return absl::InvalidArgumentError(absl::StrCat(kConfig, ": peft_type: LORA is wanted"));
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
  AdapterConfig config;
  if (const auto stabilized = json.find("use_rslora"); stabilized != json.end() && !stabilized->is_null()) {
    if (!stabilized->is_boolean()) return Bad("use_rslora", "true or false is wanted");
    config.rank_stabilized = stabilized->get<bool>();
  }
  ASSIGN_OR_RETURN(config.all.rank, ParseRank("r", json.value("r", nlohmann::json())));
  ASSIGN_OR_RETURN(config.all.alpha, ParseAlpha("lora_alpha", json.value("lora_alpha", nlohmann::json())));
  RETURN_IF_ERROR(ParseExperts(json, &config));
  return config;
}

absl::Status Wrong(const std::string& tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(kWeights, ": tensor \"", tensor, "\": ", problem));
}

absl::StatusOr<std::vector<float>> ReadFloats(const WeightsFile& file, const std::string& name,
                                              const TensorEntry& entry) {
  const absl::StatusOr<DType> dtype = ParseSafetensorsDType(entry.dtype);
  if (!dtype.ok() || !IsFloating(*dtype)) return Wrong(name, absl::StrCat("is ", entry.dtype, ", no floating dtype"));
  std::vector<char> bytes(static_cast<size_t>(entry.bytes));
  RETURN_IF_ERROR(file.Read(entry.begin, entry.bytes, bytes.data()));
  std::vector<float> values(static_cast<size_t>(entry.bytes / DTypeBytes(*dtype)));
  VisitDType(*dtype, [&]<class Elem>() {
    const Elem* const from = reinterpret_cast<const Elem*>(bytes.data());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
  });
  for (const float value : values) {
    if (!std::isfinite(value)) return Wrong(name, "has NaN or Inf");
  }
  return values;
}

// The two halves of a matrix's adapter, as they are found.
struct Halves {
  const NamedTensor *a = nullptr, *b = nullptr;
};

absl::StatusOr<std::map<std::string, Halves>> FindHalves(const WeightsFile& file) {
  std::map<std::string, Halves> all;
  for (const NamedTensor& tensor : file.tensors()) {
    absl::string_view module = tensor.first;
    const bool known = absl::ConsumePrefix(&module, "base_model.model.");
    const bool is_a = absl::ConsumeSuffix(&module, ".lora_A.weight");
    if (!known || (!is_a && !absl::ConsumeSuffix(&module, ".lora_B.weight"))) {
      return Wrong(tensor.first, "is no base_model.model.….lora_A.weight or ….lora_B.weight");
    }
    if (tensor.second.shape.size() != 2) {
      return Wrong(tensor.first, absl::StrCat("is ", tensor.second.ShapeString(), ", no matrix"));
    }
    Halves& halves = all[absl::StrCat(module, ".weight")];
    (is_a ? halves.a : halves.b) = &tensor;
  }
  if (all.empty()) return absl::InvalidArgumentError(absl::StrCat(kWeights, ": has no adapters"));
  return all;
}

// Reads the adapter of a matrix or, fused, of a matrix of each expert.
absl::StatusOr<AdaptedMatrix> ReadMatrix(const WeightsFile& file, const std::string& name, const Halves& halves,
                                         const AdapterConfig& config, const RankAndAlpha& of, bool fused) {
  if (halves.a == nullptr || halves.b == nullptr) {
    return Wrong(halves.a == nullptr ? halves.b->first : halves.a->first,
                 absl::StrCat("its ", halves.a == nullptr ? "lora_A" : "lora_B", " is missing"));
  }
  const std::vector<int64_t>&a = halves.a->second.shape, &b = halves.b->second.shape;
  // Of all experts together, or of the one matrix.
  if (fused ? a[0] % of.rank != 0 : a[0] != of.rank) {
    return Wrong(halves.a->first, absl::StrCat("is ", halves.a->second.ShapeString(), ", r in ", kConfig, " is ",
                                               of.rank, fused ? " for each expert" : ""));
  }
  if (a[0] != b[1] || a[0] == 0 || a[1] == 0 || b[0] == 0) {
    return Wrong(halves.b->first, absl::StrCat("is ", halves.b->second.ShapeString(), ", lora_A of ", name, " is ",
                                               halves.a->second.ShapeString()));
  }
  AdaptedMatrix matrix = {
      .rank = of.rank, .rows = b[0], .columns = a[1], .scale = config.ScaleOf(of), .a = {}, .b = {}};
  ASSIGN_OR_RETURN(matrix.a, ReadFloats(file, halves.a->first, halves.a->second));
  ASSIGN_OR_RETURN(matrix.b, ReadFloats(file, halves.b->first, halves.b->second));
  return matrix;
}

// Adds what a module's two halves adapt.
absl::Status ReadModule(const WeightsFile& file, const std::string& name, const Halves& halves,
                        const AdapterConfig& config, std::map<std::string, AdaptedMatrix>* to) {
  absl::string_view layer = absl::StripSuffix(name, ".weight");
  const bool inner = absl::ConsumeSuffix(&layer, kInnerFusedExperts);
  const bool fused = inner || absl::ConsumeSuffix(&layer, kFusedExperts);
  if (!fused || (!config.gate_up.has_value() && !config.down.has_value())) {
    ASSIGN_OR_RETURN((*to)[name], ReadMatrix(file, name, halves, config, config.all, false));
    return absl::OkStatus();
  }
  const bool gate_up = inner || !config.down.has_value();
  const std::optional<RankAndAlpha>& of = gate_up ? config.gate_up : config.down;
  if (!of.has_value() || (inner && !config.down.has_value())) {
    return Wrong((halves.a != nullptr ? halves.a : halves.b)->first,
                 absl::StrCat("adapts both matrices of experts, target_parameters in ", kConfig, " names one"));
  }
  ASSIGN_OR_RETURN(const AdaptedMatrix all, ReadMatrix(file, name, halves, config, *of, true));
  return SplitExperts(layer, gate_up ? kGateUpProj : kDownProj, all, to);
}

uint64_t Sum(uint64_t seed, const void* from, size_t bytes) {
  return Fnv1a(absl::StrCat(seed, " ", Fnv1a(absl::string_view(static_cast<const char*>(from), bytes))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const LoraAdapter>> LoraAdapter::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(folder));
  ASSIGN_OR_RETURN(const std::string text, dir.ReadSmallFile(kConfig, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const AdapterConfig config, ParseConfig(text));
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightsFile> file, WeightsFile::OpenSafetensors(dir, kWeights));
  if (file->size() > kMaxAdapterBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kWeights, ": ", file->size(), " bytes, at most ", kMaxAdapterBytes));
  }
  std::unique_ptr<LoraAdapter> adapter(new LoraAdapter());
  adapter->folder_ = folder;
  ASSIGN_OR_RETURN(const auto all, FindHalves(*file));
  for (const auto& [name, halves] : all) {
    RETURN_IF_ERROR(ReadModule(*file, name, halves, config, &adapter->matrices_));
  }
  return adapter;
}

bool LoraAdapter::adapts_experts() const {
  return std::any_of(matrices_.begin(), matrices_.end(),
                     [](const auto& matrix) { return absl::StrContains(matrix.first, ".experts."); });
}

std::string LoraAdapter::Hash() const {
  uint64_t sum = 0;
  for (const auto& [name, matrix] : matrices_) {
    sum = Sum(sum, name.data(), name.size());
    sum = Sum(sum, &matrix.scale, sizeof(matrix.scale));
    sum = Sum(sum, matrix.a.data(), matrix.a.size() * sizeof(float));
    sum = Sum(sum, matrix.b.data(), matrix.b.size() * sizeof(float));
  }
  return absl::StrCat(absl::Hex(sum, absl::kZeroPad16));
}

}  // namespace switchyard::checkpoint
