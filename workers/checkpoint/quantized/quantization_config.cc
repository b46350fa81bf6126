#include "workers/checkpoint/quantized/quantization_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/quantized/quantization_fields.h"

namespace switchyard::checkpoint {
namespace {

constexpr int64_t kMaxGroup = 1 << 20;
constexpr size_t kMaxSchemes = 64;
constexpr char kGroupSizes[] = "-1 (a row is one group), and sizes from 1 to 1048576";

// group_size of AWQ and GPTQ.
void ReadGroup(absl::string_view key, QuantizationFields& fields, StoredWeights* weights) {
  weights->group = fields.Int(key, 128, -1, kMaxGroup, kGroupSizes);
  if (weights->group == 0) fields.Problem(key, absl::StrCat("found 0; understood: ", kGroupSizes));
  weights->scope = weights->group > 0 ? ScaleScope::kGroup : ScaleScope::kChannel;
}

StoredWeights ReadFp8(QuantizationFields& fields) {
  StoredWeights weights{.format = StoredFormat::kFp8, .bits = 8, .scope = ScaleScope::kTensorOrChannel};
  fields.OneOf("fmt", "e4m3", {"e4m3", "float8_e4m3fn"});
  fields.OneOf("expert_dtype", "fp8", {"fp8"});
  fields.OneOf("activation_scheme", "dynamic", {"dynamic", "static"});
  if (const auto block = fields.Pair("weight_block_size"); block.has_value()) {
    weights.scope = ScaleScope::kBlock;
    std::tie(weights.block_rows, weights.block_columns) = *block;
  }
  return weights;
}

StoredWeights ReadAwq(QuantizationFields& fields) {
  StoredWeights weights{.format = StoredFormat::kAwq, .bits = 4};
  fields.Int(fields.FirstOf({"bits", "w_bit"}), 4, 4, 4, "4");
  ReadGroup(fields.FirstOf({"group_size", "q_group_size"}), fields, &weights);
  fields.OneOf(fields.FirstOf({"version", "format"}), "gemm", {"gemm"});
  weights.symmetric = !fields.Bool("zero_point", true);
  return weights;
}

StoredWeights ReadGptq(QuantizationFields& fields) {
  StoredWeights weights{.format = StoredFormat::kGptq};
  weights.bits = static_cast<int>(fields.Int("bits", std::nullopt, 4, 8, "4, 8"));
  if (weights.bits != 4 && weights.bits != 8) {
    fields.Problem("bits", absl::StrCat("found ", weights.bits, "; understood: 4, 8"));
  }
  ReadGroup("group_size", fields, &weights);
  weights.ordered = fields.Bool("desc_act", false);
  weights.symmetric = fields.Bool("sym", false);
  const std::string format = fields.OneOf(fields.FirstOf({"checkpoint_format", "format"}), "gptq", {"gptq", "gptq_v2"});
  weights.zeros_less_one = format == "gptq";
  fields.OneOf("pack_dtype", "int32", {"int32"});
  if (fields.Bool("is_marlin_format", false)) fields.Problem("is_marlin_format", "found true; understood: false");
  if (const nlohmann::json* modules = fields.Find("dynamic"); modules != nullptr && modules->is_object()) {
    for (const auto& [pattern, unused] : modules->items()) {
      if (absl::StartsWith(pattern, "-:")) continue;
      fields.Problem("dynamic", absl::StrCat("found ", Quote(pattern),
                                             "; understood: modules that are left out (\"-:…\"), no other settings"));
    }
  }
  return weights;
}

// The scope of compressed-tensors' scales, which the file may leave to its other fields.
void ReadScope(QuantizationFields& fields, StoredWeights* weights) {
  const int64_t group = fields.Int("group_size", 0, -1, kMaxGroup, kGroupSizes);
  const char* const implied = group > 0 ? "group" : group < 0 ? "channel" : "tensor";
  const std::string scope = fields.OneOf("strategy", implied, {"tensor", "channel", "group", "block"});
  if (scope == "tensor") weights->scope = ScaleScope::kTensor;
  if (scope == "channel") weights->scope = ScaleScope::kChannel;
  if (scope == "group") {
    weights->scope = ScaleScope::kGroup;
    weights->group = group;
    if (group <= 0) {
      fields.Problem("group_size",
                     absl::StrCat("found ", group, "; understood with strategy group: sizes from 1 to ", kMaxGroup));
    }
  }
  if (scope != "block") return;
  weights->scope = ScaleScope::kBlock;
  const auto block = fields.Pair("block_structure");
  if (!block.has_value() && fields.Find("block_structure") == nullptr) {
    fields.Problem("block_structure", "missing; understood with strategy block: two sizes, as [128, 128]");
  }
  std::tie(weights->block_rows, weights->block_columns) = block.value_or(std::make_pair(1, 1));
}

// Whether columns name their groups.  "weight" and "static" only say how scales were found.
bool HasColumnGroups(QuantizationFields& fields) {
  const nlohmann::json* order = fields.Find("actorder");
  if (order == nullptr) return false;
  if (order->is_boolean()) return order->get<bool>();
  const std::string name = fields.OneOf("actorder", "weight", {"weight", "static", "group", "dynamic"});
  return name == "group" || name == "dynamic";
}

// format: as the group or the whole config names it.
StoredWeights ReadScheme(const std::string& format, QuantizationFields& fields) {
  StoredWeights weights;
  const std::string type = fields.OneOf("type", "int", {"int", "float"});
  weights.bits = static_cast<int>(fields.Int("num_bits", 8, 1, 16, format == "pack-quantized" ? "4, 8" : "8"));
  weights.symmetric = fields.Bool("symmetric", true);
  weights.ordered = HasColumnGroups(fields);
  ReadScope(fields, &weights);
  const bool packed = format == "pack-quantized";
  const bool floats = format == "float-quantized" || (format == "naive-quantized" && type == "float");
  weights.format = packed ? StoredFormat::kPacked : floats ? StoredFormat::kFp8 : StoredFormat::kInt8;
  if ((type == "float") != floats) {
    fields.Problem("type",
                   absl::StrCat("found ", type, "; understood with format ", format, ": ", floats ? "float" : "int"));
  }
  if (weights.bits != 8 && !(packed && weights.bits == 4)) {
    fields.Problem("num_bits", absl::StrCat("found ", weights.bits, "; understood with format ", format, ": ",
                                            packed ? "4, 8" : "8"));
  }
  if (floats && !weights.symmetric) fields.Problem("symmetric", "found false; understood with type float: true");
  if (packed && weights.scope == ScaleScope::kBlock) {
    fields.Problem("strategy", "found block; understood with format pack-quantized: tensor, channel, group");
  }
  if (packed && weights.scope == ScaleScope::kTensor && !weights.symmetric) {
    fields.Problem("symmetric", "found false; understood with strategy tensor: true");
  }
  if (weights.ordered && (!packed || weights.scope != ScaleScope::kGroup)) {
    fields.Problem("actorder", "understood with format pack-quantized and strategy group only");
  }
  return weights;
}

constexpr const char* kFormats[] = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized"};

void ReadSchemes(const nlohmann::json& groups, QuantizationFields& fields, std::vector<std::string>* problems,
                 std::vector<StoredWeights>* schemes) {
  const bool mixed =
      fields.OneOf("format", "mixed-precision",
                   {kFormats[0], kFormats[1], kFormats[2], kFormats[3], "mixed-precision"}) == "mixed-precision";
  for (const auto& [name, group] : groups.items()) {
    const std::string at = absl::StrCat(fields.NameOf("config_groups"), ".", Excerpt(name));
    if (!group.is_object()) {
      problems->push_back(absl::StrCat(at, ": found ", Excerpt(JsonText(group)), "; understood: an object"));
      continue;
    }
    QuantizationFields of_group(group, at, problems);
    const nlohmann::json* const weights = of_group.Find("weights");
    if (weights == nullptr) continue;  // of activations alone
    if (!weights->is_object()) {
      of_group.Problem("weights", absl::StrCat("found ", Excerpt(JsonText(*weights)), "; understood: an object"));
      continue;
    }
    std::string format = mixed ? "" : fields.OneOf("format", "", kFormats);
    format = of_group.OneOf("format", format, kFormats);
    if (format.empty()) continue;
    QuantizationFields of_weights(*weights, of_group.NameOf("weights"), problems);
    schemes->push_back(ReadScheme(format, of_weights));
  }
}

std::vector<StoredWeights> ReadCompressedTensors(QuantizationFields& fields, std::vector<std::string>* problems) {
  std::vector<StoredWeights> schemes;
  const nlohmann::json* const groups = fields.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() > kMaxSchemes) {
    fields.Problem("config_groups", absl::StrCat("understood: an object of at most ", kMaxSchemes, " groups"));
    return schemes;
  }
  const size_t before = problems->size();
  ReadSchemes(*groups, fields, problems, &schemes);
  if (schemes.empty() && problems->size() == before) {
    fields.Problem("config_groups", "no group has weights");
  }
  if (const nlohmann::json* sparsity = fields.Find("sparsity_config"); sparsity != nullptr && sparsity->is_object()) {
    QuantizationFields(*sparsity, fields.NameOf("sparsity_config"), problems).OneOf("format", "dense", {"dense"});
  }
  if (const nlohmann::json* transform = fields.Find("transform_config"); transform != nullptr && !transform->empty()) {
    const auto transforms = transform->find("config_groups");
    if (!transform->is_object() || transforms == transform->end() || !transforms->empty()) {
      fields.Problem("transform_config", "transforms of weights are not understood");
    }
  }
  return schemes;
}

std::string ScopeText(const StoredWeights& weights) {
  switch (weights.scope) {
    case ScaleScope::kTensor:
      return "a scale for the tensor";
    case ScaleScope::kChannel:
      return "a scale for each row";
    case ScaleScope::kTensorOrChannel:
      return "a scale for the tensor or for each row";
    case ScaleScope::kGroup:
      return absl::StrCat("groups of ", weights.group);
    case ScaleScope::kBlock:
      return absl::StrCat("blocks of ", weights.block_rows, " x ", weights.block_columns);
  }
  return "";
}

const char* FormatText(StoredFormat format) {
  switch (format) {
    case StoredFormat::kFp8:
      return "fp8";
    case StoredFormat::kInt8:
      return "int8";
    case StoredFormat::kPacked:
      return "pack-quantized";
    case StoredFormat::kAwq:
      return "awq";
    case StoredFormat::kGptq:
      return "gptq";
    case StoredFormat::kMxfp4:
      return "mxfp4";
  }
  return "";
}

}  // namespace

std::string StoredWeights::ToString() const {
  return absl::StrCat(FormatText(format), ", ", bits, " bits, ", ScopeText(*this),
                      symmetric ? "" : ", with zero points", zeros_less_one ? ", less one" : "",
                      ordered ? ", ordered" : "");
}

std::string QuantizationConfig::ToString() const {
  const auto add = [](std::string* out, const StoredWeights& each) { absl::StrAppend(out, each.ToString()); };
  return absl::StrCat(method, ": ", absl::StrJoin(weights, "; ", add));
}

absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(absl::string_view name, const nlohmann::json& object) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": found ", Excerpt(JsonText(object)), "; understood: an object"));
  }
  std::vector<std::string> problems;
  QuantizationFields fields(object, std::string(name), &problems);
  QuantizationConfig config;
  config.method = fields.OneOf("quant_method", "", {"fp8", "compressed-tensors", "awq", "gptq", "mxfp4"});
  if (config.method == "fp8") config.weights = {ReadFp8(fields)};
  if (config.method == "awq") config.weights = {ReadAwq(fields)};
  if (config.method == "gptq") config.weights = {ReadGptq(fields)};
  if (config.method == "mxfp4") {
    config.weights = {{.format = StoredFormat::kMxfp4, .bits = 4, .scope = ScaleScope::kGroup, .group = 32}};
  }
  if (config.method == "compressed-tensors") config.weights = ReadCompressedTensors(fields, &problems);
  config.unconverted = fields.Strings(fields.FirstOf({"modules_to_not_convert", "ignored_layers", "ignore"}));
  if (problems.empty()) return config;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace switchyard::checkpoint
