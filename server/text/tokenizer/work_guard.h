// Guard of one call's work: every few thousand steps it calls a hook, on the calling thread, which may cancel the work.
// Borrows the hook for the call.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace switchyard::tokenizer {

class WorkGuard {
 public:
  // `cancelled` may be empty.
  explicit WorkGuard(const std::function<bool()>& cancelled) : cancelled_(cancelled) {}

  // Counts one step; calls the hook at intervals.  Cancelled: the hook returned true.
  absl::Status Step() {
    if (++steps_ % kStepsPerQuestion != 0) return absl::OkStatus();
    return Ask();
  }
  absl::Status Ask() const {
    return cancelled_ && cancelled_() ? absl::CancelledError("tokenizing was cancelled") : absl::OkStatus();
  }

 private:
  static constexpr size_t kStepsPerQuestion = 4096;
  const std::function<bool()>& cancelled_;
  size_t steps_ = 0;
};

}  // namespace switchyard::tokenizer
