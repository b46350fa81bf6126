#include "workers/ops/activation/gelu.h"

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {

absl::Status Gelu(const Stream& stream, Activation activation, const TensorView& x, const TensorView& y) {
  SY_CHECK(!IsGated(activation));
  const OpSite at = {"gelu", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  RETURN_IF_ERROR(ExpectView(at, "x", x, y.dtype(), y.shape()));
  const GeluArgs args = {.dtype = DTypeCode(y.dtype()),
                         .tanh = activation == Activation::kGeluTanh,
                         .x = RowsOf(x),
                         .y = RowsOf(y),
                         .width = y.dim(1)};
  return RunOnCpu(stream, y.dim(0), 2 * y.dim(1) * DTypeBytes(y.dtype()), CpuKernels().gelu, args);
}

}  // namespace switchyard::ops
