// Files of packed tokens beneath a root: the header, whether windows have a target, whether tokens are in range. Blocks
// on the disk; thread-safe.  Errors: the root's; Unavailable where reading fails; all begin with the name.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {

// Reads no token.  Errors: also those of DecodeTokenHeader (InvalidArgument).
absl::StatusOr<jobs::TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name);
// Whether windows of `length` tokens have a target (token_format.h).  `header`: the file's.  Errors: the root's, and
// Unavailable where reading fails.
absl::StatusOr<bool> ReadHasTarget(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                                   int64_t length);
// Checks that the first `max_bytes` of the tokens are below `vocab`, whatever the header says; workers check the others
// (workers/train/data/token_file.h).  Errors: also InvalidArgument "NAME: token 7 is 400, outside [0, 300)".
absl::Status ScanTokens(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                        int64_t vocab, int64_t max_bytes);

}  // namespace switchyard::server
