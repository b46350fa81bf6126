// Reads and writes whole files.  Errors are BadInput with the file and what is wrong.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::cli {

// Reads at most max_bytes, also of a longer file.
absl::StatusOr<std::string> ReadWhole(const std::string& path, size_t max_bytes = std::numeric_limits<size_t>::max());
// Writes the file whole or not at all: to a temporary file beside it, which is then renamed.
absl::Status WriteWhole(const std::string& path, absl::string_view bytes);
// Returns BadInput "<path>: <why>".
absl::Status RefuseFile(const std::string& path, absl::string_view why);

}  // namespace switchyard::cli
