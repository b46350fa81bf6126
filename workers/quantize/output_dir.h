// The directory that is written: under another name until it is whole.
//
// Its files are written to NAME.unfinished beside it, synced, and the folder is renamed at the end; one that is not
// finished is removed with this object.  Thread-compatible; blocks on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/files/write_files.h"

namespace switchyard::quantize {

class OutputDir {
 public:
  // InvalidArgument: no path, or one whose parent does not exist; AlreadyExists: it is there and not empty, or its
  // unfinished folder is.
  static absl::StatusOr<std::unique_ptr<OutputDir>> Create(const std::string& path);
  ~OutputDir();
  OutputDir(const OutputDir&) = delete;
  OutputDir& operator=(const OutputDir&) = delete;

  // ResourceExhausted, with both numbers, where the disk has less.
  absl::Status CheckRoom(int64_t bytes) { return checkpoint::CheckRoom(files_.get(), unfinished_, bytes); }
  absl::Status Write(const checkpoint::CheckpointFile& file);
  // Once, at the end.
  absl::Status Finish();

  int64_t bytes() const { return bytes_; }  // written so far

 private:
  OutputDir(std::unique_ptr<checkpoint::FileSystem> files, const std::string& name)
      : files_(std::move(files)), name_(name), unfinished_(name + ".unfinished") {}

  const std::unique_ptr<checkpoint::FileSystem> files_;  // of the parent
  const std::string name_, unfinished_;
  int64_t bytes_ = 0;
  bool finished_ = false;
};

}  // namespace switchyard::quantize
