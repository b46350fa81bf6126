// Reads and checks files of packed tokens beneath a root: the header, whether windows have a target, whether tokens are
// in range.  Blocks on the disk; thread-safe.  Errors begin with the file's name: the root's, or Unavailable if reading
// fails.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {

// Reads the header only.  Errors: also DecodeTokenHeader's (InvalidArgument).
absl::StatusOr<jobs::TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name);
// Returns whether any window has a target (token_format.h).  `header`: the file's.
absl::StatusOr<bool> ReadHasTarget(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                                   const jobs::TargetSearch& search);
// Returns whether any of the file's pairs of answers fits into a window of `length` rows
// (workers/train/data/document_windows.h); true if the first `max_bytes` of the list of documents have none and it is
// longer.
absl::StatusOr<bool> ReadHasFittingPair(const RootDir& root, const std::string& name,
                                        const jobs::TokenFileHeader& header, int64_t length, int64_t max_bytes);
// Checks that the tokens in the first `max_bytes` are below `vocab`, whatever the header says; workers check the rest
// (workers/train/data/token_file.h).  Errors: also InvalidArgument "NAME: token 7 is 400, outside [0, 300)".
absl::Status ScanTokens(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                        int64_t vocab, int64_t max_bytes);

}  // namespace switchyard::server
