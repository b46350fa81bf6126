// Errors of the CUDA runtime as absl::Status.
//
// Out of memory is ResourceExhausted, what comes of a lost device or a broken kernel Unavailable (the worker has to be
// started anew), the rest Internal.  Internal to files that include CUDA.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

// Whether this process cannot use the device any more.
inline bool CudaDeviceLost(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorAssert:
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
