// Reads safetensors: one file (SafetensorsFile), or the files of a checkpoint directory (Checkpoint).
//
// Every claim of a header is checked against the file's size; nothing is allocated from an unverified length.  Data is
// read with pread, never mapped, so that a file which shrinks meanwhile gives an error and no signal.  Read is
// thread-safe; opening is not concurrent with it.
// Errors: InvalidArgument for a file's contents, NotFound, DataLoss for a file that ends early, Unimplemented for
// another format ("unsupported format; only safetensors"). Does not do: writing, sub-byte types' contents (their sizes
// are checked), pickle, GGUF.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {

// A directory holds its weights in the first, or in shards that the second names.
inline constexpr char kSingleFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";
inline constexpr int64_t kMaxSafetensorsHeader = 25'000'000;
inline constexpr int kMaxSafetensorsRank = 8;

// One tensor as a header describes it.
struct TensorEntry {
  std::string dtype = {};           // as written: "BF16", "F8_E4M3" …
  std::vector<int64_t> shape = {};  // may be empty (a scalar) or hold zeros
  int64_t begin = 0;                // of its bytes, from the start of the file
  int64_t bytes = 0;

  std::string ShapeString() const;  // "[4, 128]"
};

// The dtype of a header's name: F64 F32 F16 BF16 I64 I32 U8; others are Unimplemented.
absl::StatusOr<DType> ParseSafetensorsDType(absl::string_view name);

class SafetensorsFile {
 public:
  // Opens `name` and checks its header.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const ModelDir& dir, const std::string& name);

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }   // since the epoch, when it was opened
  const std::string& header() const { return header_; }  // its JSON text
  // By rising offset.
  const std::vector<std::pair<std::string, TensorEntry>>& tensors() const { return tensors_; }
  // The blocks' checksums from its folder's manifest (file_sums.h), which readers compare (block_check.h); empty: there
  // are none.  Set while no thread reads.
  const std::vector<uint32_t>& block_sums() const { return block_sums_; }
  void set_block_sums(std::vector<uint32_t> crc32c) { block_sums_ = std::move(crc32c); }
  // Reads exactly `bytes` bytes at `begin` of the file.  Blocks on the disk.  Thread-safe.
  absl::Status Read(int64_t begin, int64_t bytes, void* to) const;

 private:
  SafetensorsFile(std::string name, int fd, int64_t size, int64_t modified_ns)
      : name_(std::move(name)), fd_(fd), size_(size), modified_ns_(modified_ns) {}
  absl::Status ReadHeader();

  const std::string name_;
  const UniqueFd fd_;
  const int64_t size_;
  const int64_t modified_ns_;
  std::string header_;
  std::vector<std::pair<std::string, TensorEntry>> tensors_;
  std::vector<uint32_t> block_sums_;
};

// The place of a checkpoint's tensor.
struct TensorLocation {
  const SafetensorsFile* file = nullptr;  // of the Checkpoint
  const TensorEntry* entry = nullptr;
};

// A directory's weights: model.safetensors, or the shards that model.safetensors.index.json names.
class Checkpoint {
 public:
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);
  static absl::StatusOr<Checkpoint> Open(const ModelDir& dir);

  // The file is null if there is no such tensor.
  TensorLocation Find(absl::string_view tensor) const;
  // Every tensor's name, sorted.
  std::vector<std::string> TensorNames() const;
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  // 32 hex digits over file names, sizes and headers, which must be equal on the ranks of a group.  No defence against
  // deliberate collisions.  `reading`: how their bits are understood, where config.json says that
  // (QuantizationConfig::ToString); empty: as their dtypes say.
  std::string Hash(absl::string_view reading = "") const;
  // The hash, and one over the files' times: the name under which this machine caches what it makes of their contents.
  std::string Stamp(absl::string_view reading = "") const;

 private:
  using WeightMap = absl::flat_hash_map<std::string, std::string>;  // tensor → file

  absl::Status OpenShards(const ModelDir& dir);
  // Adds a file's tensors, which must be those that `weight_map` assigns to it (empty: no index).
  absl::Status AddFile(const ModelDir& dir, const std::string& file_name, const WeightMap& weight_map);
  absl::Status CheckTotalSize(const nlohmann::json& index) const;

  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // sorted by name
  absl::flat_hash_map<std::string, TensorLocation> tensors_;
};

}  // namespace switchyard::checkpoint
