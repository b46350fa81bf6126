// The quota of a key for the files of its training jobs: disk_gib of --api_keys_file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

struct DiskQuota {
  std::string owner;              // the key's name
  int64_t limit_bytes = 0;        // 0 = none
  std::vector<std::string> jobs;  // ids of the key's jobs, whose folders count
  std::string resumed = {};       // one of them that is to go on: its own folder does not count; "" = none
};

// Returns the bytes of the jobs' folders.  A file with several names counts once, as a fork has its parent's by hard
// links; symbolic links, and what cannot be looked at or vanishes meanwhile, do not count.  `cancelled` is called
// before each file and folder (null: never): Cancelled, once it returns true.  Blocks on the disk; thread-safe.
absl::StatusOr<int64_t> BytesOfJobs(const RootDir& checkpoints, const std::vector<std::string>& jobs,
                                    const std::function<bool()>& cancelled = nullptr);

// RESOURCE_EXHAUSTED (DISK_QUOTA): the jobs' files and `needed_bytes` are together more than the limit; metadata:
// limit, used, needed, and actual, their sum.  Cancelled as above.  Blocks on the disk; thread-safe.
absl::Status CheckDiskQuota(const DiskQuota& quota, const RootDir& checkpoints, double needed_bytes,
                            const std::function<bool()>& cancelled = nullptr);

}  // namespace switchyard::server
