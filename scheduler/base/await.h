// Waits under a mutex until a deadline of the monotonic clock (scheduler/base/clock.h).
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard {

// As Mutex::AwaitWithDeadline, but by MonotonicNow: waits until the condition holds or the deadline has passed, and
// returns whether it holds.  absl::InfiniteFuture() waits for ever.  A wall clock that is set forward ends no wait
// early.
//
// One that is set back may lengthen the wait that is under way by as much, at most once: the kernel's wait below this
// one is for a time of the wall clock.  A condition that comes true ends it as ever.
// REQUIRES: the caller holds *mu.
bool AwaitUntil(absl::Mutex* mu, const absl::Condition& condition, absl::Time deadline)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

}  // namespace switchyard
