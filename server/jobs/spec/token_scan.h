// A look at the tokens of a file that a job names, before the job is accepted.  Blocks on the disk; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {

// Whether the tokens in the first `max_bytes` of them are below `vocab`, whatever the header says; those behind are the
// workers' to check, before the first step (workers/train/data/token_file.h).  `header`: the file's.  InvalidArgument
// "NAME: token 7 is 400, outside [0, 300)"; the root's errors; Unavailable where reading fails.
absl::Status ScanTokens(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                        int64_t vocab, int64_t max_bytes);

}  // namespace switchyard::server
