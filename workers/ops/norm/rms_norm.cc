#include "workers/ops/norm/rms_norm.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {

absl::Status RmsNorm(const Stream& stream, const RmsNormDesc& desc, const TensorView& x, const TensorView& gamma,
                     const TensorView& y) {
  const OpSite at = {"rms_norm", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  const DType x_dtype = x.dtype() == y.dtype() ? y.dtype() : AccDType(y.dtype());
  RETURN_IF_ERROR(ExpectView(at, "x", x, x_dtype, y.shape()));
  const int64_t width = desc.head_dim > 0 ? desc.head_dim : y.dim(1);
  if (width <= 0 || y.dim(1) % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm: row width ", y.dim(1), " is not a positive multiple of head_dim ", width));
  }
  RETURN_IF_ERROR(ExpectView(at, "gamma", gamma, y.dtype(), {width}));
  const RmsNormArgs args = {.x_dtype = DTypeCode(x_dtype),
                            .dtype = DTypeCode(y.dtype()),
                            .x = x.raw(),
                            .gamma = gamma.raw(),
                            .y = y.raw(),
                            .x_stride = x.row_stride(),
                            .y_stride = y.row_stride(),
                            .groups = y.dim(1) / width,
                            .width = width,
                            .eps = desc.eps,
                            .rounds_once = desc.rounds_once};
  if (!stream.device().is_cpu()) return RunOnCuda("rms_norm", stream, &CudaKernelTable::rms_norm, args, y.dim(0));
  return RunOnCpu(stream, y.dim(0), y.dim(1) * DTypeBytes(x_dtype), CpuKernels().rms_norm, args);
}

}  // namespace switchyard::ops
