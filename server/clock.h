// The server's clock: monotonic, so that a wall clock that jumps moves no deadline.  It starts at the wall clock's
// time, so that its values read as times; never compare them with the wall clock.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard::server {

// The clock of a simulation, whose time is virtual; null: the real one.  Set it before anything reads the time.
inline absl::Time (*simulated_now)() = nullptr;

inline absl::Time MonotonicNow() {
  if (simulated_now != nullptr) return simulated_now();
  using SteadyClock = std::chrono::steady_clock;
  static const SteadyClock::time_point start = SteadyClock::now();
  static const absl::Time wall_start = absl::Now();
  return wall_start + absl::FromChrono(SteadyClock::now() - start);
}

}  // namespace switchyard::server
