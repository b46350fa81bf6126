// The server's clock: monotonic, so that a wall clock that jumps moves no deadline.  It starts at the wall clock's
// time, so that its values read as times; never compare them with the wall clock.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard::server {

inline absl::Time MonotonicNow() {
  using SteadyClock = std::chrono::steady_clock;
  static const SteadyClock::time_point start = SteadyClock::now();
  static const absl::Time wall_start = absl::Now();
  return wall_start + absl::FromChrono(SteadyClock::now() - start);
}

}  // namespace switchyard::server
