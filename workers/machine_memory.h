// Memory that the processes of this machine, or of this container, may take: /proc/meminfo and the limits of control
// groups, v1 and v2, of this process' own group and of every group above it.
//
// Pure but for the files that it reads.  Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

struct MachineMemory {
  int64_t total_bytes = 0;      // in all: the least limit
  int64_t available_bytes = 0;  // that can be taken now without swapping or being killed; never negative
  // What sets available_bytes, in words: "/sys/fs/cgroup/memory.max allows 1782579200 bytes, 4096 of which are used",
  // or "/proc/meminfo has 8000000000 bytes available".
  std::string limit;
  // Processes with the same name take from the same memory: this machine's boot, and the group with the least limit
  // where there is one.
  std::string domain;
};

// `root`: "" for this machine; a test's folder with the files below it.
// A group's use counts without its file cache, which the kernel drops before it kills.  A limit that cannot be read, or
// whose use cannot, is one of what is known of it: no limit, or nothing used.
MachineMemory ReadMachineMemory(const std::string& root = "");

}  // namespace switchyard
