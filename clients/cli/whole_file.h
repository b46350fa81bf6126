// Files read and written whole.  Errors are BadInput with the file and what is wrong.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard {

absl::StatusOr<std::string> ReadWhole(const std::string& path);
// Whole or not at all: written beside it, then renamed.
absl::Status WriteWhole(const std::string& path, absl::string_view bytes);
// "<path>: <why>".
absl::Status RefuseFile(const std::string& path, absl::string_view why);

}  // namespace switchyard
