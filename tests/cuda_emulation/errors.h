// The errors of calls: last error per thread, broken devices, injected errors.  Thread-safe.
#pragma once

#include <functional>

#include "cuda_emulation/runtime_api.h"

namespace cuda_emulation {

// Called at the beginning of each function of the API.  Any result but cudaSuccess is recorded and must be returned: an
// injected error, the error of the current device if that is broken, or cudaErrorNotPermitted within a host function of
// a stream.
cudaError_t Enter(const char* call_name);
cudaError_t Leave(cudaError_t error);  // records what is not cudaSuccess, and returns it

// The same for work that runs: an injected error or cudaSuccess.
cudaError_t InjectedError(const char* name);

// Counts a copy from the host's memory to a device's, for control.h.
void CountUpload(size_t bytes);

// What no later call survives: illegal address, ECC and their like.
bool IsSticky(cudaError_t error);
void BreakDevice(int device, cudaError_t error);  // the first error stays
cudaError_t DeviceError(int device);

// Runs a host function: within it no call is permitted.
void RunHostFunction(const std::function<void()>& function);

void ResetErrors();  // of all devices, and injections
void ResetDevice(int device);

}  // namespace cuda_emulation
