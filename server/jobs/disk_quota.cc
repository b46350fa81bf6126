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
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace fs = std::filesystem;

absl::StatusOr<int64_t> BytesOfJobs(const RootDir& checkpoints, const std::vector<std::string>& jobs,
                                    const std::function<bool()>& cancelled) {
  std::set<std::pair<dev_t, ino_t>> shared;  // files with other names that were counted
  std::vector<fs::path> folders;             // still to be read
  std::error_code error;
  for (const std::string& id : jobs) {
    const fs::path folder = fs::path(checkpoints.path()) / id;
    if (CheckPlainName(id).ok() && fs::is_directory(fs::symlink_status(folder, error))) folders.push_back(folder);
  }
  int64_t bytes = 0;
  while (!folders.empty()) {
    const fs::path folder = std::move(folders.back());
    folders.pop_back();
    // An iterator for each folder, as one for all would end at the first that a job has renamed or removed meanwhile.
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (cancelled && cancelled()) return absl::CancelledError("cancelled while files of jobs were counted");
      struct stat file = {};
      if (lstat(it->path().c_str(), &file) != 0) continue;
      if (S_ISDIR(file.st_mode)) folders.push_back(it->path());
      if (!S_ISREG(file.st_mode)) continue;
      if (file.st_nlink > 1 && !shared.emplace(file.st_dev, file.st_ino).second) continue;
      bytes += static_cast<int64_t>(file.st_size);
    }
  }
  return bytes;
}

absl::Status CheckDiskQuota(const DiskQuota& quota, const RootDir& checkpoints, double needed_bytes,
                            const std::function<bool()>& cancelled) {
  if (quota.limit_bytes == 0) return absl::OkStatus();
  std::vector<std::string> jobs = quota.jobs;
  std::erase(jobs, quota.resumed);
  ASSIGN_OR_RETURN(const int64_t used, BytesOfJobs(checkpoints, jobs, cancelled));
  const auto needed = static_cast<int64_t>(std::min(std::max(needed_bytes, 0.0), 4e18));
  if (used <= quota.limit_bytes && needed <= quota.limit_bytes - used) return absl::OkStatus();
  const std::string which = quota.resumed.empty() ? "its jobs" : absl::StrCat("its jobs but ", quota.resumed);
  return rpc::MakeError(
      absl::StatusCode::kResourceExhausted, v1::DISK_QUOTA,
      absl::StrCat(
          "disk_gib of the key ", quota.owner, ": limit ", quota.limit_bytes, " bytes, files of ", which, " have ",
          used, needed > 0 ? absl::StrCat(", about ", needed, " more are needed for checkpoints and packed text") : "",
          "; `switchyard train delete` frees what a job that has ended has"),
      {{"field", "disk_gib"},
       {"limit", absl::StrCat(quota.limit_bytes)},
       {"used", absl::StrCat(used)},
       {"needed", absl::StrCat(needed)},
       {"actual", absl::StrCat(used + needed)}});
}

}  // namespace switchyard::server
