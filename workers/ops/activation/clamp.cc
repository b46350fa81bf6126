#include "workers/ops/activation/clamp.h"

#include <cmath>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {

absl::Status Clamp(const Stream& stream, double limit, const TensorView& x) {
  const OpSite at = {"clamp", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "x", x));
  if (!std::isfinite(limit) || limit <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("clamp: limit must be positive and finite, is ", limit));
  }
  const ClampArgs args = {
      .dtype = DTypeCode(x.dtype()), .x = x.raw(), .x_stride = x.row_stride(), .width = x.dim(1), .limit = limit};
  if (!stream.device().is_cpu()) return RunOnCuda("clamp", stream, &CudaKernelTable::clamp, args, x.dim(0));
  return RunOnCpu(stream, x.dim(0), x.dim(1) * DTypeBytes(x.dtype()), CpuKernels().clamp, args);
}

}  // namespace switchyard::ops
