#include "workers/tensor/machine_memory.h"

#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace switchyard {
namespace {

// Where distributions mount v2 alone, v2 beside v1, and v1.
constexpr char kV2Mount[] = "/sys/fs/cgroup", kUnifiedMount[] = "/sys/fs/cgroup/unified",
               kV1Mount[] = "/sys/fs/cgroup/memory";

struct GroupLimit {
  std::string file;  // with the limit; its path without the root
  std::string folder;
  int64_t bytes = 0;
  int64_t used = 0;

  int64_t left() const { return std::max<int64_t>(0, bytes - used); }
};

// The number that a file begins with; -1 if there is no file or no number ("max").
int64_t NumberIn(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  int64_t value = -1;
  return in >> word && absl::SimpleAtoi(word, &value) ? value : -1;
}

// The number behind `key`, with or without a colon; -1 if there is none.
int64_t FieldIn(const std::string& path, absl::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t:"), absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return -1;
}

// This process' groups below the mounts, of v2 ("0::/a/b") and of v1's memory controller ("4:memory:/a/b").
struct GroupPaths {
  std::string v2 = "/", v1 = "/";
};

GroupPaths ReadGroupPaths(const std::string& root) {
  GroupPaths paths;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    // A path outside the mount, as after a process was moved in, names no group here.
    if (fields.size() != 3 || absl::StrContains(fields[2], "/..")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) paths.v1 = fields[2];
    if (fields[0] == "0") paths.v2 = fields[2];
  }
  return paths;
}

// Bytes that the group uses and cannot drop: all but pages of files.
int64_t UsedBy(const std::string& folder, const char* usage, absl::string_view prefix) {
  const int64_t used = NumberIn(absl::StrCat(folder, "/", usage));
  const std::string stat = folder + "/memory.stat";
  const int64_t inactive = std::max<int64_t>(0, FieldIn(stat, absl::StrCat(prefix, "inactive_file")));
  const int64_t active = std::max<int64_t>(0, FieldIn(stat, absl::StrCat(prefix, "active_file")));
  return std::max<int64_t>(0, used - inactive - active);
}

void AddLimitsOfV2(const std::string& root, const std::string& folder, std::vector<GroupLimit>* limits) {
  // Above memory.high a group is slowed down until it frees memory, and weights are never freed.
  for (const char* name : {"memory.max", "memory.high"}) {
    const std::string file = absl::StrCat(folder, "/", name);
    const int64_t bytes = NumberIn(root + file);
    if (bytes >= 0) limits->push_back({file, folder, bytes, UsedBy(root + folder, "memory.current", "")});
  }
}

void AddLimitsOfV1(const std::string& root, const std::string& folder, std::vector<GroupLimit>* limits) {
  const int64_t used = UsedBy(root + folder, "memory.usage_in_bytes", "total_");
  const std::string own = folder + "/memory.limit_in_bytes", all = folder + "/memory.stat";
  // Without a limit it is the largest number of pages.
  if (const int64_t bytes = NumberIn(root + own); bytes >= 0) limits->push_back({own, folder, bytes, used});
  // The limit of the groups above, including those that a container does not see.
  if (const int64_t bytes = FieldIn(root + all, "hierarchical_memory_limit"); bytes >= 0) {
    limits->push_back({all, folder, bytes, used});
  }
}

// Calls add for the group and those above, up to the mount's root.  In a container only the root may exist.
template <class AddFn>
void AddLimits(const std::string& mount, std::string path, AddFn add) {
  for (;; path.resize(path.find_last_of('/'))) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    add(mount + path);
    if (path.empty()) return;
  }
}

std::vector<GroupLimit> ReadLimits(const std::string& root) {
  const GroupPaths paths = ReadGroupPaths(root);
  std::vector<GroupLimit> limits;
  for (const char* mount : {kV2Mount, kUnifiedMount}) {
    AddLimits(mount, paths.v2, [&](const std::string& folder) { AddLimitsOfV2(root, folder, &limits); });
  }
  AddLimits(kV1Mount, paths.v1, [&](const std::string& folder) { AddLimitsOfV1(root, folder, &limits); });
  return limits;
}

std::string BootId(const std::string& root) {
  std::ifstream in(root + "/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (in >> boot) return boot;
  // A sandbox may hide it; processes of one container share a host name, too.
  utsname system = {};
  return uname(&system) == 0 ? system.nodename : "";
}

// Names the group of that folder, which containers see at different paths.
std::string NameOf(const std::string& root, const std::string& boot, const std::string& folder) {
  struct stat st = {};
  if (boot.empty() || stat((root + folder).c_str(), &st) != 0) return "";
  return absl::StrCat(boot, " ", st.st_dev, ":", st.st_ino);
}

}  // namespace

int64_t MachineMemory::available_bytes() const {
  int64_t least = pools.front().available_bytes;
  for (const MemoryPool& each : pools) least = std::min(least, each.available_bytes);
  return least;
}

MachineMemory ReadMachineMemory(const std::string& root) {
  constexpr char kMemInfo[] = "/proc/meminfo";
  const std::string boot = BootId(root);
  const int64_t available = std::max<int64_t>(0, FieldIn(root + kMemInfo, "MemAvailable")) * 1024;
  MachineMemory memory;
  memory.total_bytes = std::max<int64_t>(0, FieldIn(root + kMemInfo, "MemTotal")) * 1024;
  memory.pools.push_back({boot, available, absl::StrCat(kMemInfo, " has ", available, " bytes available")});
  for (const GroupLimit& each : ReadLimits(root)) {
    // Without a limit, v1 has a number beyond all memory.
    if (each.bytes >= memory.total_bytes && each.left() >= available) continue;
    memory.total_bytes = std::min(memory.total_bytes, each.bytes);
    MemoryPool pool = {NameOf(root, boot, each.folder), each.left(),
                       absl::StrCat(each.file, " allows ", each.bytes, " bytes, ", each.used, " of which are used")};
    const auto same = std::find_if(memory.pools.begin(), memory.pools.end(),
                                   [&pool](const MemoryPool& other) { return other.name == pool.name; });
    if (pool.name.empty() || same == memory.pools.end()) {
      memory.pools.push_back(std::move(pool));
    } else if (pool.available_bytes < same->available_bytes) {
      *same = std::move(pool);
    }
  }
  return memory;
}

}  // namespace switchyard
