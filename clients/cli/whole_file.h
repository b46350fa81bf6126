// Files read and written whole.  Errors are BadInput with the file and what is wrong.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::cli {

// At most max_bytes: of a longer one no more is read than that.
absl::StatusOr<std::string> ReadWhole(const std::string& path, size_t max_bytes = std::numeric_limits<size_t>::max());
// Whole or not at all: written beside it, then renamed.
absl::Status WriteWhole(const std::string& path, absl::string_view bytes);
// "<path>: <why>".
absl::Status RefuseFile(const std::string& path, absl::string_view why);

}  // namespace switchyard::cli
