// What a gate's decision costs the rank that waits for it: `offload_bench --deciding`.
#pragma once

namespace switchyard::bench {

// Prints a row for each shape and policy: processor time of OnGate, a gate.
void PrintDecidingTimes();

}  // namespace switchyard::bench
