// A simulated run as a trace for chrome://tracing or Perfetto: JSON with a process for each rank, and in it a row for
// computing, one for copies, and one for each queue of collectives.  Pure.
#pragma once

#include <string>

#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

// REQUIRES: `result` is Simulate's of `input`.
std::string ChromeTrace(const SimInput& input, const SimResult& result);

}  // namespace switchyard::simulator
