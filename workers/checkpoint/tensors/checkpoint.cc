#include "workers/checkpoint/tensors/checkpoint.h"

#include <algorithm>

#include "absl/container/btree_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/gguf/gguf_weights.h"

namespace switchyard::checkpoint {
namespace {

constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int64_t kMaxIndexedTensors = 4'000'000;

absl::Status InShard(absl::string_view file, const absl::Status& status) {
  return InFile(absl::StrCat("shard ", file), status);
}

constexpr size_t kMostNamed = 8;

// NotFound, with the names of the files that are missing.
absl::Status CheckAllThere(const ModelDir& dir, const absl::btree_set<std::string>& names) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!dir.Exists(name)) missing.push_back(Excerpt(name));
  }
  if (missing.empty()) return absl::OkStatus();
  const size_t count = missing.size();
  missing.resize(std::min(count, kMostNamed));
  return absl::NotFoundError(absl::StrCat(
      kIndexFile, ": of the ", names.size(), " files that it names ", count, count == 1 ? " is" : " are",
      " missing; is the download incomplete? hf download completes it. Missing: ", absl::StrJoin(missing, ", "),
      count > missing.size() ? absl::StrCat(" and ", count - missing.size(), " more") : ""));
}

// InvalidArgument for what is neither a file of the directory nor one in folders beneath it ("folder/file").
absl::Status CheckShardName(absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(name, '/')) RETURN_IF_ERROR(CheckPlainName(part));
  return absl::OkStatus();
}

bool IsForeignName(absl::string_view name) {
  for (const char* suffix : {".bin", ".pt", ".pth", ".gguf", ".ckpt", ".h5", ".msgpack", ".npz", ".pkl"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

// FNV-1a with 128 bits.
class Fnv128 {
 public:
  void Add(absl::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * kPrime;
  }
  std::string Hex() const {
    return absl::StrCat(absl::Hex(static_cast<uint64_t>(state_ >> 64), absl::kZeroPad16),
                        absl::Hex(static_cast<uint64_t>(state_), absl::kZeroPad16));
  }

 private:
  static constexpr unsigned __int128 kPrime = (static_cast<unsigned __int128>(1) << 88) + 0x13b;
  unsigned __int128 state_ = (static_cast<unsigned __int128>(0x6c62272e07bb0142ULL) << 64) | 0x62b821756295c58dULL;
};

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  if (IsGgufFile(path)) return OpenGguf(path);
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(path));
  return Open(dir);
}

absl::StatusOr<Checkpoint> Checkpoint::OpenGguf(const std::string& path) {
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(checkpoint.files_, OpenGgufWeights(path));
  for (const std::unique_ptr<WeightsFile>& file : checkpoint.files_) {
    for (const auto& [name, entry] : file->tensors()) checkpoint.tensors_[name] = {file.get(), &entry};
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const ModelDir& dir) {
  Checkpoint checkpoint;
  if (dir.Exists(kSingleFile)) {
    RETURN_IF_ERROR(checkpoint.AddFile(dir, kSingleFile, {}));
    return checkpoint;
  }
  if (dir.Exists(kIndexFile)) {
    RETURN_IF_ERROR(checkpoint.OpenShards(dir));
    return checkpoint;
  }
  for (const std::string& name : dir.List()) {
    if (IsForeignName(name)) {
      return absl::UnimplementedError(absl::StrCat(Excerpt(name), ": unsupported format; only safetensors"));
    }
  }
  const std::vector<std::string> names = dir.List();
  const bool has_shards = std::any_of(names.begin(), names.end(),
                                      [](const std::string& name) { return absl::EndsWith(name, ".safetensors"); });
  return absl::NotFoundError(absl::StrCat("model directory ", dir.path(), ": neither ", kSingleFile, " nor ",
                                          kIndexFile, has_shards ? ", but other files of safetensors" : "",
                                          "; is the download incomplete? hf download completes it"));
}

absl::Status Checkpoint::OpenShards(const ModelDir& dir) {
  ASSIGN_OR_RETURN(std::string text, dir.ReadSmallFile(kIndexFile, kMaxIndexBytes));
  ASSIGN_OR_RETURN(nlohmann::json index,
                   ParseStrictJson(kIndexFile, text, {.max_depth = 8, .max_values = kMaxIndexedTensors}));
  text.clear();
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kIndexFile, ": weight_map is missing or no object"));
  }
  WeightMap weight_map;
  absl::btree_set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kIndexFile, ": weight_map[\"", Excerpt(tensor), "\"] is no string"));
    }
    const std::string& name = file.get_ref<const std::string&>();
    if (absl::Status status = CheckShardName(name); !status.ok()) return InShard(Excerpt(name), status);
    if (!absl::EndsWith(name, ".safetensors")) {
      return InShard(Excerpt(name), absl::UnimplementedError("unsupported format; only safetensors"));
    }
    weight_map[tensor] = name;
    names.insert(name);
  }
  if (names.empty()) return absl::InvalidArgumentError(absl::StrCat(kIndexFile, ": weight_map is empty"));
  RETURN_IF_ERROR(CheckAllThere(dir, names));
  for (const std::string& name : names) RETURN_IF_ERROR(AddFile(dir, name, weight_map));
  // A tensor that the index names and no shard has is an error where it is needed: published indexes name such.
  WarnOfTotalSize(index);
  return absl::OkStatus();
}

void Checkpoint::WarnOfTotalSize(const nlohmann::json& index) const {
  if (!index.contains("metadata") || !index["metadata"].is_object()) return;
  const nlohmann::json& metadata = index["metadata"];
  if (!metadata.contains("total_size")) return;
  int64_t held = 0;
  for (const auto& [unused, location] : tensors_) held += location.entry->bytes;
  const nlohmann::json& total = metadata["total_size"];
  if (total.is_number() && total.get<double>() == static_cast<double>(held)) return;
  LogWarn(kIndexFile, ": metadata.total_size is ", Excerpt(total.dump()), ", the shards' tensors have ", held,
          " bytes");
}

absl::Status Checkpoint::AddFile(const ModelDir& dir, const std::string& file_name, const WeightMap& weight_map) {
  ASSIGN_OR_RETURN(std::unique_ptr<WeightsFile> file, WeightsFile::OpenSafetensors(dir, file_name));
  for (const auto& [name, entry] : file->tensors()) {
    const auto it = weight_map.find(name);
    if (!weight_map.empty() && it == weight_map.end()) {
      return InShard(file_name, absl::InvalidArgumentError(
                                    absl::StrCat("tensor \"", Excerpt(name), "\": the index does not name it")));
    }
    if (!weight_map.empty() && it->second != file_name) {
      return InShard(file_name, absl::InvalidArgumentError(absl::StrCat("tensor \"", Excerpt(name),
                                                                        "\": the index puts it into ", it->second)));
    }
    tensors_[name] = {file.get(), &entry};
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

TensorLocation Checkpoint::Find(absl::string_view tensor) const {
  const auto it = tensors_.find(tensor);
  return it == tensors_.end() ? TensorLocation{} : it->second;
}

std::vector<std::string> Checkpoint::TensorNames() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, unused] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string Checkpoint::Hash(absl::string_view reading) const {
  Fnv128 hash;
  for (const std::unique_ptr<WeightsFile>& file : files_) {
    hash.Add(absl::StrCat(file->name(), "\n", file->size(), "\n", file->header().size(), "\n"));
    hash.Add(file->header());
  }
  hash.Add(reading);
  return hash.Hex();
}

std::string Checkpoint::Stamp(absl::string_view reading) const {
  Fnv128 hash;
  for (const std::unique_ptr<WeightsFile>& file : files_) hash.Add(absl::StrCat(file->modified_ns(), "\n"));
  return absl::StrCat(Hash(reading), "-", hash.Hex());
}

}  // namespace switchyard::checkpoint
