// Enqueues work on a stream of the emulation, for stand-ins of other libraries (NCCL).
//
// Streams are lazy: work runs when a thread waits for it (a stream, event or device synchronize, a query, a synchronous
// copy, an event that a stream that runs waits for), on the OS thread that waits.  No lock is held while work runs.
// During capture the work becomes a node of the graph; each launch of the graph runs a copy of it as it was when
// captured, so its state must be in its value.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "cuda_emulation/runtime_api.h"

namespace cuda_emulation {

// Runs once, may not block for another stream's work or another OS thread.  An error breaks the stream's device, as a
// kernel's does.
using Work = std::function<cudaError_t()>;

// Work that waits for peers.  Called again and again until it returns a value; tries for about `wait` (0: checks once).
// Other streams of the device run between the calls.  A change that may change its result must be followed by
// NotifyProgress().
using PatientWork = std::function<std::optional<cudaError_t>(std::chrono::microseconds wait)>;

// Returns the API's errors: cudaErrorInvalidResourceHandle for an invalid stream, errors of capture.
// `name` (a literal) is for messages and for FailAt.
cudaError_t Enqueue(cudaStream_t stream, const char* name, Work work);
cudaError_t EnqueuePatient(cudaStream_t stream, const char* name, PatientWork work);

// Wakes up threads that wait for a PatientWork.
void NotifyProgress();

// Runs at most one item of each stream of the device and does not wait: for a caller that may be the only one to wait
// for the device.
void AdvanceDevice(int device);

// The device of the stream (of the calling thread, for stream 0); -1 for an invalid stream.
int DeviceOfStream(cudaStream_t stream);

}  // namespace cuda_emulation
