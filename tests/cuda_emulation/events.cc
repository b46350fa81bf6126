#include "tests/cuda_emulation/events.h"

#include <map>

#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {

struct Event {};

namespace {

std::mutex mu;
std::map<const Event*, EventState> events;

cudaError_t Record(cudaEvent_t handle, cudaStream_t stream_handle) {
  const auto stream = FindStream(stream_handle);
  EventState state;
  if (const cudaError_t error = FindEvent(handle, &state); error != cudaSuccess) return error;
  if (stream == nullptr || stream->device != state.device) return cudaErrorInvalidResourceHandle;
  state.captured = PlaceInCapture(stream);
  state.record = nullptr;
  if (state.captured.capture != nullptr) {
    if (state.captured.capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  } else {
    auto record = std::make_shared<EventRecord>();
    std::weak_ptr<EventRecord> weak = record;  // the mark holds the stream, whose item this is
    const cudaError_t error = EnqueueItem(stream, {"event",
                                                   [weak](std::chrono::microseconds) -> std::optional<cudaError_t> {
                                                     if (const auto reached = weak.lock()) {
                                                       reached->nanoseconds =
                                                           std::chrono::steady_clock::now().time_since_epoch().count();
                                                     }
                                                     return cudaSuccess;
                                                   },
                                                   {}});
    if (error != cudaSuccess) return error;
    record->mark = EndOf(stream);
    state.record = record;
  }
  std::lock_guard lock(mu);
  events[handle] = state;
  return cudaSuccess;
}

cudaError_t Elapsed(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  EventState from, to;
  if (const cudaError_t error = FindEvent(start, &from); error != cudaSuccess) return error;
  if (const cudaError_t error = FindEvent(end, &to); error != cudaSuccess) return error;
  if ((from.flags | to.flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
  if (from.record == nullptr || to.record == nullptr) return cudaErrorInvalidResourceHandle;
  if (!from.record->mark.Done() || !to.record->mark.Done()) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(to.record->nanoseconds - from.record->nanoseconds) * 1e-6f;
  return cudaSuccess;
}

}  // namespace

cudaError_t FindEvent(cudaEvent_t handle, EventState* state) {
  std::lock_guard lock(mu);
  const auto found = events.find(handle);
  if (found == events.end()) return cudaErrorInvalidResourceHandle;
  *state = found->second;
  return cudaSuccess;
}

}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = Enter("cudaEventCreate"); error != cudaSuccess) return error;
  if (event == nullptr) return Leave(cudaErrorInvalidValue);
  *event = new Event;
  std::lock_guard lock(mu);
  EventState& state = events[*event];
  state.flags = flags;
  state.device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = Enter("cudaEventDestroy");
  std::lock_guard lock(mu);
  const bool known = events.erase(event) > 0;
  if (known) delete event;  // also of a device that is lost
  if (error != cudaSuccess) return error;
  return known ? cudaSuccess : Leave(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaEventRecord"); error != cudaSuccess) return error;
  return Leave(Record(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (const cudaError_t error = Enter("cudaEventElapsedTime"); error != cudaSuccess) return error;
  return Leave(Elapsed(milliseconds, start, end));
}
