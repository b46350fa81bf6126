// Emulated compute: time that passes.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard::bench {

// Sleeps to within some tens of microseconds; at once if it is past.
inline void SleepUntil(absl::Time when) {
  const absl::Duration left = when - absl::Now();
  if (left > absl::ZeroDuration()) absl::SleepFor(left);
}

}  // namespace switchyard::bench
