// The clock of all deadlines, waits and measured durations: monotonic, so that a wall clock that jumps moves none of
// them.  It begins at the wall clock's time, so that its values read as times, and a test may pass absl::Now() plus a
// limit as a deadline.  Elsewhere never compare them with the wall clock: what is handed to gRPC, say, is what is left.
// Dates (in files, logs, manifests, certificates) are absl::Now().
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard {

// The clock of a simulation, whose time is virtual; null: the real one.  Set it before anything reads the time.
inline absl::Time (*simulated_now)() = nullptr;

inline absl::Time MonotonicNow() {
  if (simulated_now != nullptr) return simulated_now();
  using SteadyClock = std::chrono::steady_clock;
  static const SteadyClock::time_point start = SteadyClock::now();
  static const absl::Time wall_start = absl::Now();
  return wall_start + absl::FromChrono(SteadyClock::now() - start);
}

}  // namespace switchyard
