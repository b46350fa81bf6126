// The header of a file of packed tokens beneath a root, and whether it has targets.  Blocks on the disk; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {

// Reads no token.  The root's errors, Unavailable where reading fails, and those of DecodeTokenHeader
// (InvalidArgument); all begin with the name.
absl::StatusOr<jobs::TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name);
// Whether windows of `length` tokens have a target (token_format.h).  `header`: the file's.  Errors: the root's, and
// Unavailable where reading fails.
absl::StatusOr<bool> ReadHasTarget(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                                   int64_t length);

}  // namespace switchyard::server
