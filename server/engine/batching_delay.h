// BatchingDelay: how long a resting engine waits for company before the first step of a burst.
//
// Prompts that arrive together should share a step: several ranks then compute attention at once (a step with one
// prompt leaves the others idle there), and experts see more rows.  The wait is at most one hundredth of what the step
// is expected to take, and never more than 2 ms; an engine that computes already does not wait.  Pure.
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace switchyard::server {

class BatchingDelay {
 public:
  // A step of `rows` rows took this long.  Small ones say nothing about prompts and are left out.
  void Observe(int64_t rows, absl::Duration duration);

  // For an engine that rests, with `waiting_tokens` > 0 in its queue: when to plan.  Not later than now once they fill
  // `step_tokens`, what a step has room for.  Remembers when it was first asked; Close() forgets it.
  absl::Time OpensAt(int64_t waiting_tokens, int64_t step_tokens, absl::Time now);
  void Close() { since_ = absl::InfiniteFuture(); }

 private:
  absl::Duration per_row_;  // recent mean; zero until known
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace switchyard::server
