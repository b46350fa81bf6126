// A file system that passes the calling thread's gate (yield_point.h) between pieces of a megabyte, so that a job stops
// for serving.  A thread that waits for the disk to sync or to remove is outside of its gate.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

inline constexpr int64_t kYieldBytes = int64_t{1} << 20;

std::unique_ptr<checkpoint::FileSystem> YieldingFiles(std::unique_ptr<checkpoint::FileSystem> inner);

// Calls take() for each piece of at most kYieldBytes, at least once, after passing the gate.
absl::Status InYieldingPieces(absl::string_view bytes, absl::FunctionRef<absl::Status(absl::string_view piece)> take);

}  // namespace switchyard::train
