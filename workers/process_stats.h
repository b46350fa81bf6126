// What this process and machine have, from /proc.  Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

int64_t ResidentBytes();         // of this process; 0 when unknown
int64_t MachineMemoryBytes();    // in all, a container's limit considered
int64_t AvailableMemoryBytes();  // that can be taken without swapping, a container's limit considered
// What AvailableMemoryBytes is of: processes with the same name take from the same memory.  This machine's boot, and
// the container where it has a limit of its own.
std::string MemoryDomain();

}  // namespace switchyard
