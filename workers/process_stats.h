// What this process and machine have, from /proc.  Thread-safe.
#pragma once

#include <cstdint>

namespace switchyard {

int64_t ResidentBytes();         // of this process; 0 when unknown
int64_t MachineMemoryBytes();    // in all, a container's limit considered
int64_t AvailableMemoryBytes();  // that can be taken without swapping, a container's limit considered

}  // namespace switchyard
