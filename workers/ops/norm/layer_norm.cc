#include "workers/ops/norm/layer_norm.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {

absl::Status LayerNorm(const Stream& stream, const LayerNormDesc& desc, const TensorView& x, const TensorView& y) {
  const OpSite at = {"layer_norm", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  const DType x_dtype = x.dtype() == y.dtype() ? y.dtype() : AccDType(y.dtype());
  RETURN_IF_ERROR(ExpectView(at, "x", x, x_dtype, y.shape()));
  RETURN_IF_ERROR(ExpectView(at, "gamma", desc.gamma, y.dtype(), {y.dim(1)}));
  RETURN_IF_ERROR(ExpectView(at, "beta", desc.beta, y.dtype(), {y.dim(1)}));
  const LayerNormArgs args = {.x_dtype = DTypeCode(x_dtype),
                              .dtype = DTypeCode(y.dtype()),
                              .x = RowsOf(x),
                              .gamma = desc.gamma.raw(),
                              .beta = desc.beta.raw(),
                              .y = RowsOf(y),
                              .width = y.dim(1),
                              .eps = desc.eps};
  return RunOnCpu(stream, y.dim(0), y.dim(1) * DTypeBytes(x_dtype), CpuKernels().layer_norm, args);
}

}  // namespace switchyard::ops
