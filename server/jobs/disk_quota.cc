#include "server/jobs/disk_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/model_dir.h"

namespace switchyard::server {
namespace fs = std::filesystem;

int64_t BytesOfJobs(const RootDir& checkpoints, const std::vector<std::string>& jobs) {
  std::set<std::pair<dev_t, ino_t>> shared;  // files with other names that were counted
  int64_t bytes = 0;
  for (const std::string& id : jobs) {
    const fs::path folder = fs::path(checkpoints.path()) / id;
    std::error_code error;
    if (!CheckPlainName(id).ok() || !fs::is_directory(fs::symlink_status(folder, error))) continue;
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      struct stat file = {};
      if (lstat(it->path().c_str(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
      if (file.st_nlink > 1 && !shared.emplace(file.st_dev, file.st_ino).second) continue;
      bytes += static_cast<int64_t>(file.st_size);
    }
  }
  return bytes;
}

absl::Status CheckDiskQuota(const DiskQuota& quota, const RootDir& checkpoints, double needed_bytes) {
  if (quota.limit_bytes == 0) return absl::OkStatus();
  const int64_t used = BytesOfJobs(checkpoints, quota.jobs);
  const auto needed = static_cast<int64_t>(std::min(std::max(needed_bytes, 0.0), 4e18));
  if (used <= quota.limit_bytes && needed <= quota.limit_bytes - used) return absl::OkStatus();
  return rpc::MakeError(
      absl::StatusCode::kResourceExhausted, v1::DISK_QUOTA,
      absl::StrCat("disk_gib of the key ", quota.owner, ": limit ", quota.limit_bytes, " bytes, its ",
                   quota.jobs.size(), " jobs have ", used,
                   needed > 0 ? absl::StrCat(", about ", needed, " more are needed for checkpoints") : "",
                   "; `switchyard train delete` frees what a job that has ended has"),
      {{"field", "disk_gib"}, {"limit", absl::StrCat(quota.limit_bytes)}, {"actual", absl::StrCat(used + needed)}});
}

}  // namespace switchyard::server
