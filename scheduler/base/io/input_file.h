// A file of a model directory, open for reading.
//
// Data is read with pread, never mapped, so that a file which shrinks meanwhile gives an error and no signal.
// Thread-safe.  Errors of Read, each with the file's name in front: DataLoss for a file that ends early, Unavailable
// for a disk that fails.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard {

class InputFile {
 public:
  // Errors: ModelDir::OpenFile's; InvalidArgument for a pointer of Git LFS.
  static absl::StatusOr<InputFile> Open(const ModelDir& dir, const std::string& name);

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  int64_t modified_ns() const { return modified_ns_; }  // since the epoch, when it was opened
  // Reads exactly `bytes` bytes at `begin` of the file.  Blocks on the disk.
  absl::Status Read(int64_t begin, int64_t bytes, void* to) const;

 private:
  InputFile(std::string name, int fd, int64_t size, int64_t modified_ns)
      : name_(std::move(name)), fd_(fd), size_(size), modified_ns_(modified_ns) {}

  std::string name_;
  UniqueFd fd_;
  int64_t size_;
  int64_t modified_ns_;
};

// The status with the file's name before its message.
inline absl::Status InFile(absl::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace switchyard
