// Batching delay: how long an idle engine waits for more requests before the first step of a burst.
//
// Prompts that arrive together should share a step: several ranks then compute attention at once (a step with one
// prompt leaves the others idle there), and experts see more rows.  The wait is at most one hundredth of what the step
// is expected to take, and never more than 2 ms; an engine that computes already does not wait.  Pure.
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace switchyard::server {

class BatchingDelay {
 public:
  // Records that a step of `rows` rows took `duration`.  Ignores small steps, which do not show the cost of a prompt's
  // row.
  void Observe(int64_t rows, absl::Duration duration) {
    if (rows < kLeastRows) return;
    const absl::Duration per_row = duration / rows;
    per_row_ = per_row_ == absl::ZeroDuration() ? per_row : per_row_ + (per_row - per_row_) / kRecent;
  }

  // Returns when an idle engine with `waiting_tokens` > 0 in its queue should plan; `now` if they fill a step of
  // `step_tokens`.  The wait begins at the first call after Close().
  absl::Time OpensAt(int64_t waiting_tokens, int64_t step_tokens, absl::Time now) {
    since_ = std::min(since_, now);
    if (waiting_tokens >= step_tokens) return now;
    return since_ + std::min(kLongest, per_row_ * waiting_tokens / kShare);
  }
  void Close() { since_ = absl::InfiniteFuture(); }

 private:
  static constexpr int64_t kLeastRows = 64;
  static constexpr int kRecent = 8;   // steps in the mean
  static constexpr int kShare = 100;  // the wait is the step's expected time divided by this
  static constexpr absl::Duration kLongest = absl::Milliseconds(2);

  absl::Duration per_row_;  // recent mean; zero until known
  absl::Time since_ = absl::InfiniteFuture();
};

}  // namespace switchyard::server
