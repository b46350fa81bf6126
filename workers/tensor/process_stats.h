// What this process and machine have, from /proc.  Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

int64_t ResidentBytes();  // of this process; 0 when unknown
// As machine_memory.h has them.
int64_t MachineMemoryBytes();
int64_t AvailableMemoryBytes();

}  // namespace switchyard
