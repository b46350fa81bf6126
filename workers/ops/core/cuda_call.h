// Calls of CUDA kernels by ops: the call's context, and the runtime's error as a status.  Internal to workers/ops.
#pragma once

#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/device.h"

namespace switchyard::ops {

// REQUIRES: a CUDA stream, CudaKernels() != nullptr.
absl::StatusOr<CudaCall> MakeCudaCall(const Stream& stream);
// Unavailable when the device is lost or an earlier kernel broke it, else Internal; with SY_SYNC_OPS waits for the op.
absl::Status CheckCudaLaunch(absl::string_view op, const Stream& stream, int error);

// Enqueues an entry of the table: RunOnCuda("clamp", stream, &CudaKernelTable::clamp, args, rows).
template <class... Args>
absl::Status RunOnCuda(absl::string_view op, const Stream& stream,
                       int (*CudaKernelTable::*kernel)(const CudaCall& call, Args... args),
                       const std::type_identity_t<Args>&... args) {
  ASSIGN_OR_RETURN(const CudaCall call, MakeCudaCall(stream));
  return CheckCudaLaunch(op, stream, (CudaKernels()->*kernel)(call, args...));
}

}  // namespace switchyard::ops
