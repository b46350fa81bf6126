// Errors of the CUDA runtime as absl::Status.
//
// Out of memory becomes ResourceExhausted; a lost device or a broken kernel becomes Unavailable (the worker must be
// restarted); the rest becomes Internal.  Internal to files that include CUDA.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

// Whether this process cannot use the device any more: CUDA's manual says of these errors that the process must be
// terminated and launched again, or that memory is damaged.
inline bool CudaDeviceLost(cudaError_t error) {
  // The oldest supported toolkit has no names for these.
  constexpr int kContained = 226;         // an error of the hardware or of a peer over NVLink
  constexpr int kTensorMemoryLeak = 721;  // a kernel's
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case kTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

inline absl::Status CudaStatus(absl::string_view what, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (CudaDeviceLost(error)) {
    return absl::UnavailableError(absl::StrCat(message, "; this process cannot use the device any more"));
  }
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

#define SY_RETURN_IF_CUDA_ERROR(call)                                   \
  do {                                                                  \
    if (const cudaError_t sy_error_ = (call); sy_error_ != cudaSuccess) \
      return ::switchyard::CudaStatus(#call, sy_error_);                \
  } while (false)

}  // namespace switchyard
