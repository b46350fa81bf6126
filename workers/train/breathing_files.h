// A file system whose readers and writers stop for a moment between pieces of a megabyte: those of a job that makes way
// for serving (work_gate.h).
#pragma once

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/file_system.h"

namespace switchyard {

inline constexpr int64_t kBreathBytes = int64_t{1} << 20;

// breathe: from whatever threads use the files.
std::unique_ptr<FileSystem> BreathingFiles(std::unique_ptr<FileSystem> inner, std::function<void()> breathe);

// take() of each piece of at most kBreathBytes; at least one.
absl::Status InBreaths(absl::string_view bytes, absl::FunctionRef<absl::Status(absl::string_view piece)> take);

}  // namespace switchyard
