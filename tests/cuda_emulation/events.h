// Events: the last place where each was recorded.
#pragma once

#include <chrono>
#include <memory>

#include "tests/cuda_emulation/capture.h"

namespace cuda_emulation {

struct EventRecord {
  Mark mark;
  std::atomic<int64_t> nanoseconds{0};  // when it was reached
};

struct EventState {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<EventRecord> record;  // null: never recorded, or last in a capture
  CapturedPlace captured;               // if last recorded in a capture
};

// cudaErrorInvalidResourceHandle if the handle is no event.
cudaError_t FindEvent(cudaEvent_t handle, EventState* state);

}  // namespace cuda_emulation
