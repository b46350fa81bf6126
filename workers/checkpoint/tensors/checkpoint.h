// Checkpoint: a model's weights by the names that HuggingFace's checkpoints have.  They are in a directory, in
// model.safetensors or the shards that model.safetensors.index.json names (also in folders beneath it), or in one GGUF
// file or its splits.  A tensor that the index names and no shard has is not there: no error until it is needed.
//
// Reading is thread-safe; opening is not concurrent with it.
// Errors: InvalidArgument for a file's contents, NotFound, DataLoss for a file that ends early, Unimplemented for
// another format ("unsupported format; only safetensors").  Does not do: writing, pickle, what quantized bits mean
// (quantized/matrix_reader.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "scheduler/base/io/model_dir.h"
#include "workers/checkpoint/tensors/weights_file.h"

namespace switchyard::checkpoint {

// A directory holds its weights in the first, or in shards that the second names.
inline constexpr char kSingleFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

class Checkpoint {
 public:
  // A directory, or a GGUF file (of a split model any of its files).
  static absl::StatusOr<Checkpoint> Open(const std::string& path);
  static absl::StatusOr<Checkpoint> Open(const ModelDir& dir);

  // The file is null if there is no such tensor.
  TensorLocation Find(absl::string_view tensor) const;
  // Every tensor's name, sorted.
  std::vector<std::string> TensorNames() const;
  const std::vector<std::unique_ptr<WeightsFile>>& files() const { return files_; }
  // 32 hex digits over file names, sizes and headers, which must be equal on the ranks of a group.  No defence against
  // deliberate collisions.  `reading`: how their bits are understood, where config.json says that
  // (QuantizationConfig::ToString); empty: as their dtypes say.
  std::string Hash(absl::string_view reading = "") const;
  // The hash, and one over the files' times: the name under which this machine caches what it makes of their contents.
  std::string Stamp(absl::string_view reading = "") const;

 private:
  using WeightMap = absl::flat_hash_map<std::string, std::string>;  // tensor → file

  static absl::StatusOr<Checkpoint> OpenGguf(const std::string& path);
  absl::Status OpenShards(const ModelDir& dir);
  // Adds a file's tensors, which must be those that `weight_map` assigns to it (empty: no index).
  absl::Status AddFile(const ModelDir& dir, const std::string& file_name, const WeightMap& weight_map);
  // Warns where metadata.total_size is not the bytes of all tensors: some writers count whole files.  Nobody needs it.
  void WarnOfTotalSize(const nlohmann::json& index) const;

  std::vector<std::unique_ptr<WeightsFile>> files_;  // sorted by name
  absl::flat_hash_map<std::string, TensorLocation> tensors_;
};

}  // namespace switchyard::checkpoint
