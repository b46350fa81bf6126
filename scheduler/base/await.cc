#include "scheduler/base/await.h"

#include <algorithm>

#include "scheduler/base/clock.h"

namespace switchyard {
namespace {

// The kernel's waits end by the wall clock: short ones, after each of which the clock here is read.
constexpr absl::Duration kLongestKernelWait = absl::Seconds(1);

}  // namespace

bool AwaitUntil(absl::Mutex* mu, const absl::Condition& condition, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - MonotonicNow();
    // Once more with nothing left: a condition that holds counts, also at a deadline that has passed.
    if (mu->AwaitWithTimeout(condition, std::clamp(left, absl::ZeroDuration(), kLongestKernelWait))) return true;
    if (left <= absl::ZeroDuration()) return false;
  }
}

}  // namespace switchyard
