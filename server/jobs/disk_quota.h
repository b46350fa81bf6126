// The quota of a key for the files of its training jobs: disk_gib of --api_keys_file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

struct DiskQuota {
  std::string owner;              // the key's name
  int64_t limit_bytes = 0;        // 0 = none
  std::vector<std::string> jobs;  // ids of the key's jobs, whose folders count
};

// Returns the bytes of the jobs' folders.  A file with several names counts once, as a fork has its parent's by hard
// links; symbolic links, and what cannot be looked at, do not count.  Blocks on the disk; thread-safe.
int64_t BytesOfJobs(const RootDir& checkpoints, const std::vector<std::string>& jobs);

// RESOURCE_EXHAUSTED (DISK_QUOTA): what the jobs have and `needed_bytes` are together more than the limit.  Blocks on
// the disk; thread-safe.
absl::Status CheckDiskQuota(const DiskQuota& quota, const RootDir& checkpoints, double needed_bytes);

}  // namespace switchyard::server
