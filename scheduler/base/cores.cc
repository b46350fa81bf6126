#include "scheduler/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace switchyard {
namespace {

// The group's path below the mount: of v2 ("0::/a/b"), or of v1's cpu controller ("4:cpu,cpuacct:/a/b").
std::string GroupPath(const std::string& self) {
  std::ifstream in(self);
  std::string path = "/";
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool v1_cpu = std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end();
    if (v1_cpu) return fields[2];
    if (fields[0] == "0") path = fields[2];
  }
  return path;
}

// quota / period of one group; 0 when it has none.
double QuotaOf(const std::string& group) {
  std::string quota, period;
  if (std::ifstream v2(group + "/cpu.max"); v2) {
    v2 >> quota >> period;
  } else {
    std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group + "/cpu.cfs_period_us") >> period;
  }
  double quota_us = 0, period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) return 0;  // "max" is no number
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : 0;
}

}  // namespace

double CpuQuota(const std::string& mount, const std::string& self) {
  double least = 0;
  // From the group up to the mount's root.  In a container the path may be the host's: then only the root is there.
  for (std::string path = GroupPath(self);; path.resize(path.find_last_of('/'))) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const double quota = QuotaOf(mount + path);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
    if (path.empty()) return least;
  }
}

int UsableCores() {
  cpu_set_t mask;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cores = CPU_COUNT(&mask);
  for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu"}) {
    const double quota = CpuQuota(mount, "/proc/self/cgroup");
    if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  }
  return std::max(cores, 1);
}

}  // namespace switchyard
