// The header of a file of packed tokens beneath a root.  Blocks on the disk; thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/root_dir.h"
#include "scheduler/training/token_format.h"

namespace switchyard {

// Reads no token.  The root's errors, Unavailable where reading fails, and those of DecodeTokenHeader
// (InvalidArgument); all begin with the name.
absl::StatusOr<TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name);

}  // namespace switchyard
