// Memory that this process may take: of its machine (/proc/meminfo), and of each control group that limits it, v1 and
// v2, its own and every one above it.
//
// Pure but for the files that it reads.  Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

// The machine's memory, or what a group may have of it.
struct MemoryPool {
  // Processes that say the same name take from the same memory: the machine's boot, and the group.  Empty: unknown.
  std::string name;
  int64_t available_bytes = 0;  // that can be taken now without swapping or being killed; never negative
  // What sets that, in words: "/sys/fs/cgroup/memory.max allows 1782579200 bytes, 4096 of which are used", or
  // "/proc/meminfo has 8000000000 bytes available".
  std::string limit;
};

struct MachineMemory {
  int64_t total_bytes = 0;        // in all: the least limit
  std::vector<MemoryPool> pools;  // one at least; the machine's first

  int64_t available_bytes() const;  // of the pool with the least
};

// `root`: "" for this machine; a test's folder with the files below it.
// A group's use counts without its file cache, which the kernel drops before it kills.  A limit that cannot be read, or
// whose use cannot, is one of what is known of it: no limit, or nothing used.
MachineMemory ReadMachineMemory(const std::string& root = "");

}  // namespace switchyard
