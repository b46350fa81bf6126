// cudaStream*, cudaEvent* (but for capture), cudaDeviceSynchronize.
#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"
#include "tests/cuda_emulation/events.h"

namespace cuda_emulation {
namespace {

cudaError_t CreateStream(cudaStream_t* handle, unsigned flags, int priority) {
  if (handle == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *handle = AddStream(CurrentDevice(), flags, std::min(0, std::max(-5, priority))).get();
  return cudaSuccess;
}

// Waits for the end of the stream.
cudaError_t Wait(const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = RefuseIfCaptured(stream); error != cudaSuccess) return error;
  if (stream->legacy) {  // waits for the blocking streams, too
    for (const auto& other : StreamsOfDevice(stream->device)) {
      if (!other->blocking()) continue;
      if (const cudaError_t error = RunUntil(EndOf(other)); error != cudaSuccess) return error;
    }
  }
  return RunUntil(EndOf(stream));
}

// A query never waits.  It runs one item, so that a caller that polls gets to the end, and gets "not ready" before.
cudaError_t Query(const Mark& mark) {
  if (const cudaError_t error = DeviceError(mark.stream->device); error != cudaSuccess) return error;
  if (mark.Done()) return cudaSuccess;
  RunOne(mark.stream);
  const cudaError_t error = DeviceError(mark.stream->device);
  return error != cudaSuccess ? error : cudaErrorNotReady;
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  if (const cudaError_t error = Enter("cudaStreamCreate"); error != cudaSuccess) return error;
  return Leave(CreateStream(stream, cudaStreamDefault, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (const cudaError_t error = Enter("cudaStreamCreateWithFlags"); error != cudaSuccess) return error;
  return Leave(CreateStream(stream, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (const cudaError_t error = Enter("cudaStreamCreateWithPriority"); error != cudaSuccess) return error;
  return Leave(CreateStream(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaStreamDestroy"); error != cudaSuccess) return error;
  const auto stream = FindStream(handle);
  if (stream == nullptr || stream->legacy) return Leave(cudaErrorInvalidResourceHandle);
  ForgetStream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaStreamSynchronize"); error != cudaSuccess) return error;
  return Leave(Wait(FindStream(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaStreamQuery"); error != cudaSuccess) return error;
  const auto stream = FindStream(handle);
  if (stream == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = RefuseIfCaptured(stream); error != cudaSuccess) return Leave(error);
  if (const cudaError_t error = RefuseUnsafe(); error != cudaSuccess) return Leave(error);
  return Leave(Query(EndOf(stream)));
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  if (const cudaError_t error = Enter("cudaStreamGetPriority"); error != cudaSuccess) return error;
  const auto stream = FindStream(handle);
  if (stream == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  if (const cudaError_t error = Enter("cudaStreamGetFlags"); error != cudaSuccess) return error;
  const auto stream = FindStream(handle);
  if (stream == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = Enter("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  if (const cudaError_t error = RefuseUnsafe(); error != cudaSuccess) return Leave(error);
  return Leave(RunDevice(CurrentDevice()));
}

cudaError_t cudaDeviceReset() {
  ResetDevice(CurrentDevice());
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  if (const cudaError_t error = Enter("cudaLaunchHostFunc"); error != cudaSuccess) return error;
  if (function == nullptr) return Leave(cudaErrorInvalidValue);
  return Leave(Enqueue(stream, "host function", [function, user_data] {
    RunHostFunction([&] { function(user_data); });
    return cudaSuccess;
  }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (const cudaError_t error = Enter("cudaEventSynchronize"); error != cudaSuccess) return error;
  EventState state;
  if (const cudaError_t error = FindEvent(handle, &state); error != cudaSuccess) return Leave(error);
  if (state.captured.capture != nullptr) return Leave(cudaErrorCapturedEvent);
  return state.record == nullptr ? cudaSuccess : Leave(RunUntil(state.record->mark));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (const cudaError_t error = Enter("cudaEventQuery"); error != cudaSuccess) return error;
  EventState state;
  if (const cudaError_t error = FindEvent(handle, &state); error != cudaSuccess) return Leave(error);
  if (state.captured.capture != nullptr) return Leave(cudaErrorCapturedEvent);
  if (const cudaError_t error = RefuseUnsafe(); error != cudaSuccess) return Leave(error);
  return state.record == nullptr ? cudaSuccess : Leave(Query(state.record->mark));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  if (const cudaError_t error = Enter("cudaStreamWaitEvent"); error != cudaSuccess) return error;
  const auto stream = FindStream(stream_handle);
  EventState state;
  if (const cudaError_t error = FindEvent(handle, &state); error != cudaSuccess) return Leave(error);
  if (stream == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  if (state.captured.capture != nullptr || IsCaptured(stream)) return Leave(WaitForCaptured(stream, state.captured));
  if (state.record == nullptr) return cudaSuccess;
  return Leave(EnqueueItem(stream, {"wait for event", nullptr, {state.record->mark}}));
}
