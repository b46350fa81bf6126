// Work of one's own on a stream of the emulation: for stand-ins of other libraries (NCCL).
//
// Streams are lazy: work runs when somebody waits for it (a stream, event or device synchronize, a query, a synchronous
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

// For what waits for peers.  Called again and again until it returns a value; tries for about `wait` (0: only looks).
// Other streams of the device run between the calls.  When its answer may have changed, somebody must call
// NotifyProgress().
using PatientWork = std::function<std::optional<cudaError_t>(std::chrono::microseconds wait)>;

// Returns what the API's calls return: cudaErrorInvalidResourceHandle for what is no stream, errors of capture.
// `name` (a literal) is for messages and for FailAt.
cudaError_t Enqueue(cudaStream_t stream, const char* name, Work work);
cudaError_t EnqueuePatient(cudaStream_t stream, const char* name, PatientWork work);

// Wakes up whoever waits for a PatientWork.
void NotifyProgress();

// Runs at most one item of each stream of the device and does not wait: for who waits for a device that nobody else may
// be waiting for.
void AdvanceDevice(int device);

// The device of the stream (of the calling thread, for stream 0); -1 for what is no stream.
int DeviceOfStream(cudaStream_t stream);

}  // namespace cuda_emulation
