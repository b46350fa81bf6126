// What this process and machine have, from /proc.  Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

int64_t ResidentBytes();       // of this process; 0 when unknown
int64_t MachineMemoryBytes();  // as machine_memory.h has it

}  // namespace switchyard
