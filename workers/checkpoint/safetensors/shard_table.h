// The tensors of a checkpoint by name, whatever ranks wrote them, so that it loads on any number of ranks.
//
// Threads may read at once.  Keeps its files open, so that a checkpoint that is removed meanwhile stays readable.  Does
// not do: checksums, conversion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {

class ShardTable {
 public:
  struct Place {
    int file = 0;  // of the table
    TensorEntry entry;
  };

  ShardTable() = default;
  // Opens the manifest's files PREFIX….safetensors of a folder: "model-", "optimizer-".
  // Errors: the file system's; InvalidArgument for a header that does not fit its file, or a tensor in two files.
  static absl::StatusOr<ShardTable> Open(FileSystem* files, const std::string& folder, const Manifest& manifest,
                                         absl::string_view prefix);

  const std::vector<std::string>& names() const { return names_; }  // sorted
  std::optional<Place> Find(absl::string_view tensor) const;
  const std::string& file_name(const Place& place) const { return file_names_[place.file]; }
  // Reads to.size() bytes of the tensor, from its byte `begin` on.  REQUIRES: the tensor has them.
  absl::Status Read(const Place& place, int64_t begin, absl::Span<char> to) const;

 private:
  absl::Status Add(FileSystem* files, const std::string& folder, const std::string& name);

  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::string> file_names_;
  std::vector<std::string> names_;
  absl::flat_hash_map<std::string, Place> places_;
};

}  // namespace switchyard::checkpoint
