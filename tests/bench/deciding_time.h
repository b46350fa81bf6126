// Measures how long a rank waits for a gate's decision: `offload_bench --deciding`.
#pragma once

namespace switchyard::bench {

// Prints a row for each shape and policy: processor time of OnGate, a gate.
void PrintDecidingTimes();

}  // namespace switchyard::bench
