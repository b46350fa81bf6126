// A file without a name for state that does not fit into memory; the system removes it when the process ends.
//
// Reads and writes at any offset, and grows with writes behind its end; thread-safe for parts that do not overlap; all
// calls block on the disk.  Errors are marked Lost (train_outcome.h) and name the directory, the call and the offset.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::train {

class StateFile {
 public:
  virtual ~StateFile() = default;
  virtual absl::Status Read(int64_t at, absl::Span<char> to) const = 0;
  virtual absl::Status Write(int64_t at, absl::string_view from) = 0;
};

// Makes a file of so many bytes.
using OpenStateFileFn = std::function<absl::StatusOr<std::unique_ptr<StateFile>>(int64_t bytes)>;

// Makes a file of zeros with its room on the disk allocated.  ResourceExhausted, at once, if there is not enough.
absl::StatusOr<std::unique_ptr<StateFile>> OpenStateFile(const std::string& directory, int64_t bytes);

// ResourceExhausted "offload: DIR: needs N bytes, M are free"; `shares` files of this size are made at the same time.
absl::Status CheckStateRoom(const std::string& directory, int64_t bytes, int shares);

}  // namespace switchyard::train
