// Bounds one call's work: asks a hook now and then whether somebody still waits for the answer.
// Borrowed for the call.  The hook must be callable from the calling thread; it is asked every few thousand steps.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace switchyard::tokenizer {

class WorkGuard {
 public:
  // `cancelled` may be empty.
  explicit WorkGuard(const std::function<bool()>& cancelled) : cancelled_(cancelled) {}

  // Counts one step; now and then asks the hook.  Cancelled if it says so.
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
