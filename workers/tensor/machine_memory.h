// The memory that this process may use: of its machine (/proc/meminfo), and of each control group that limits it (v1
// and v2, its own and those above it).  Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

// The machine's memory, or a control group's share of it.
struct MemoryPool {
  // Processes with the same name (of the machine's boot and the group) share this memory.  Empty: unknown.
  std::string name;
  int64_t available_bytes = 0;  // without swapping or being killed; never negative
  std::string limit = {};  // its source: "/sys/fs/cgroup/memory.max allows 1782579200 bytes, 4096 of which are used"
};

struct MachineMemory {
  int64_t total_bytes = 0;        // the least limit
  std::vector<MemoryPool> pools;  // at least one; the machine's first

  int64_t available_bytes() const;  // the least of all pools
};

// root: "" for this machine; tests give a folder with such files.  A group's use excludes its file cache, which the
// kernel drops before it kills.  A limit that cannot be read counts as none, a use that cannot be read as 0.
MachineMemory ReadMachineMemory(const std::string& root = "");

}  // namespace switchyard
