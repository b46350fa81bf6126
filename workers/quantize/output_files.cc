#include "workers/quantize/output_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/model/config/config.h"
#include "workers/model/config/config_reader.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;
constexpr int64_t kMostCopiedBytes = int64_t{64} << 20;

// The bytes of a tensor of the checkpoint.
std::function<absl::Status(checkpoint::ByteSink)> BytesOfTensor(const checkpoint::TensorLocation& at,
                                                                const std::function<bool()>& stop) {
  return [at, stop](checkpoint::ByteSink sink) -> absl::Status {
    std::string piece;
    for (int64_t done = 0; done < at.entry->bytes; done += static_cast<int64_t>(piece.size())) {
      if (stop()) return absl::CancelledError("interrupted");
      piece.resize(static_cast<size_t>(std::min(kPieceBytes, at.entry->bytes - done)));
      RETURN_IF_ERROR(at.file->Read(at.entry->begin + done, static_cast<int64_t>(piece.size()), piece.data()));
      RETURN_IF_ERROR(sink(piece));
    }
    return absl::OkStatus();
  };
}

bool IsCopied(const std::string& name) {
  for (const char* own :
       {model::kConfigFile, checkpoint::kIndexFile, checkpoint::kManifestName, checkpoint::kLatestName}) {
    if (name == own) return false;
  }
  if (absl::EndsWith(name, ".index.json")) return false;  // of other weights
  for (const char* suffix : {".json", ".jinja", ".model", ".txt"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return absl::StartsWith(name, "LICENSE") || absl::StartsWith(name, "NOTICE");
}

}  // namespace

std::string ShardName(int64_t number, int64_t count) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number, count);
}

std::vector<checkpoint::TensorToWrite> PackedTensors(absl::Span<const NamedMatrix> matrices) {
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const NamedMatrix& each : matrices) {
    const QuantizedMatrix& matrix = each.matrix;
    tensors.push_back({.name = each.name + "_packed",
                       .dtype = DType::kI32,
                       .shape = {matrix.rows, matrix.row_words()},
                       .contents = checkpoint::BytesAt(matrix.words.data(),
                                                       static_cast<int64_t>(matrix.words.size() * sizeof(uint32_t)))});
    tensors.push_back({.name = each.name + "_scale",
                       .dtype = DType::kBf16,
                       .shape = {matrix.rows, matrix.row_groups()},
                       .contents = checkpoint::BytesAt(matrix.scales.data(),
                                                       static_cast<int64_t>(matrix.scales.size() * sizeof(uint16_t)))});
    const std::vector<int64_t> shape = {matrix.rows, matrix.columns};
    tensors.push_back({.name = each.name + "_shape",
                       .dtype = DType::kI64,
                       .shape = {2},
                       .contents = [shape](checkpoint::ByteSink sink) {
                         return sink({reinterpret_cast<const char*>(shape.data()), 2 * sizeof(int64_t)});
                       }});
  }
  return tensors;
}

absl::StatusOr<std::vector<checkpoint::TensorToWrite>> PlainTensors(
    const checkpoint::Checkpoint& checkpoint, const absl::btree_set<std::string>& consumed,
    const absl::btree_map<std::string, std::string>& renamed, const std::function<bool()>& stop) {
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const std::string& name : checkpoint.TensorNames()) {
    if (consumed.contains(name)) continue;
    const checkpoint::TensorLocation at = checkpoint.Find(name);
    const absl::StatusOr<DType> dtype = checkpoint::ParseSafetensorsDType(at.entry->dtype);
    if (!dtype.ok()) {
      return absl::UnimplementedError(absl::StrCat(at.file->name(), ": tensor \"", name, "\" is of dtype ",
                                                   at.entry->dtype, ", which cannot be copied"));
    }
    const auto other = renamed.find(name);
    tensors.push_back({.name = other == renamed.end() ? name : other->second,
                       .dtype = *dtype,
                       .shape = at.entry->shape,
                       .contents = BytesOfTensor(at, stop)});
  }
  return tensors;
}

std::string IndexText(absl::Span<const std::vector<std::string>> shards, int64_t total_bytes) {
  nlohmann::json map = nlohmann::json::object();  // sorted
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const std::string& name : shards[i])
      map[name] = ShardName(static_cast<int64_t>(i) + 1, static_cast<int64_t>(shards.size()));
  }
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", total_bytes}};
  index["weight_map"] = map;
  return index.dump(2) + "\n";
}

absl::StatusOr<std::string> QuantizedConfig(absl::string_view config_text, const GroupFormat& format,
                                            const std::vector<std::string>& plain_modules) {
  nlohmann::ordered_json config;
  if (ReadJson(config_text, {.max_depth = model::kMaxConfigDepth}, &config) || !config.is_object()) {
    return absl::InvalidArgumentError("config.json: is no JSON object");
  }
  const nlohmann::ordered_json weights = {
      {"num_bits", format.bits},    {"type", "int"},
      {"symmetric", true},          {"strategy", "group"},
      {"group_size", format.group}, {"dynamic", false},
      {"actorder", nullptr},        {"block_structure", nullptr},
      {"observer", "minmax"},       {"observer_kwargs", nlohmann::ordered_json::object()}};
  const nlohmann::ordered_json group = {{"targets", {"Linear"}},
                                        {"weights", weights},
                                        {"input_activations", nullptr},
                                        {"output_activations", nullptr},
                                        {"format", "pack-quantized"}};
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "pack-quantized"},
                                   {"quantization_status", "compressed"},
                                   {"global_compression_ratio", nullptr},
                                   {"kv_cache_scheme", nullptr},
                                   {"config_groups", {{"group_0", group}}},
                                   {"ignore", plain_modules}};
  return config.dump(2) + "\n";
}

absl::StatusOr<std::vector<checkpoint::CheckpointFile>> CopiedFiles(const ModelDir& model) {
  std::vector<checkpoint::CheckpointFile> files;
  for (const std::string& name : model.List()) {
    if (!IsCopied(name)) continue;
    checkpoint::CheckpointFile file = {.name = name};
    absl::StatusOr<std::string> text = model.ReadSmallFile(name, kMostCopiedBytes);
    if (!text.ok()) return text.status();
    file.text = *std::move(text);
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace switchyard::quantize
