#include "workers/process_stats.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

// The number behind "Key:" in a file such as /proc/meminfo, in bytes; -1 when it is not there.
int64_t KbField(const char* path, const char* key) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return -1;
  char line[256];
  int64_t value = -1;
  while (value < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    long long kb = 0;
    if (std::strncmp(line, key, std::strlen(key)) == 0 && std::sscanf(line + std::strlen(key), ": %lld", &kb) == 1)
      value = kb * 1024;
  }
  std::fclose(file);
  return value;
}

int64_t NumberIn(const char* path) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return -1;
  long long value = -1;
  if (std::fscanf(file, "%lld", &value) != 1) value = -1;  // "max" reads as no limit
  std::fclose(file);
  return value;
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t ContainerLimit() {
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max");
  return limit > 0 ? limit : kNoLimit;
}

}  // namespace

int64_t ResidentBytes() { return std::max<int64_t>(0, KbField("/proc/self/status", "VmRSS")); }

int64_t MachineMemoryBytes() {
  return std::min(ContainerLimit(), std::max<int64_t>(0, KbField("/proc/meminfo", "MemTotal")));
}

int64_t AvailableMemoryBytes() {
  const int64_t available = std::max<int64_t>(0, KbField("/proc/meminfo", "MemAvailable"));
  const int64_t limit = ContainerLimit();
  const int64_t used = NumberIn("/sys/fs/cgroup/memory.current");
  if (limit == kNoLimit || used < 0) return available;
  return std::min(available, std::max<int64_t>(0, limit - used));
}

std::string MemoryDomain() {
  char boot[64] = {};
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "r"); file != nullptr) {
    if (std::fscanf(file, "%63s", boot) != 1) boot[0] = '\0';
    std::fclose(file);
  }
  if (boot[0] == '\0' || ContainerLimit() == kNoLimit) return boot;
  struct stat st = {};
  if (stat("/sys/fs/cgroup", &st) != 0) return boot;
  return absl::StrCat(boot, " ", st.st_ino);
}

}  // namespace switchyard
