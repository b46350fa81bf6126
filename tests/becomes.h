// Waits for what nothing announces.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard {

inline constexpr absl::Duration kWait = absl::Seconds(30);

// Whether the condition holds within `most`; it is asked for every 5 ms.
inline bool Becomes(const std::function<bool()>& condition, absl::Duration most = kWait) {
  for (const absl::Time end = absl::Now() + most; !condition(); absl::SleepFor(absl::Milliseconds(5))) {
    if (absl::Now() > end) return false;
  }
  return true;
}

}  // namespace switchyard
