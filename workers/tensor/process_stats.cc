#include "workers/tensor/process_stats.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "workers/tensor/machine_memory.h"

namespace switchyard {
namespace {

// The number behind "Key:" in /proc/self/status, in bytes; 0 when it is not there.
int64_t OwnBytes(const char* key) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  int64_t value = 0;
  while (value == 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    long long kb = 0;
    if (std::strncmp(line, key, std::strlen(key)) == 0 && std::sscanf(line + std::strlen(key), ": %lld", &kb) == 1)
      value = std::max<int64_t>(0, kb * 1024);
  }
  std::fclose(file);
  return value;
}

}  // namespace

int64_t ResidentBytes() { return OwnBytes("VmRSS"); }

int64_t MachineMemoryBytes() { return ReadMachineMemory().total_bytes; }

}  // namespace switchyard
