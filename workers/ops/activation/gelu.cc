#include "workers/ops/activation/gelu.h"

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status Gelu(const Stream& stream, Activation activation, const TensorView& x, const TensorView& y) {
  SY_CHECK(!IsGated(activation));
  const OpSite at = {"gelu", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  RETURN_IF_ERROR(ExpectView(at, "x", x, y.dtype(), y.shape()));
  const GeluArgs args = {.dtype = DTypeCode(y.dtype()),
                         .tanh = activation == Activation::kGeluTanh,
                         .x = x.raw(),
                         .y = y.raw(),
                         .x_stride = x.row_stride(),
                         .y_stride = y.row_stride(),
                         .width = y.dim(1)};
  stream.pool().ParallelFor(y.dim(0), RowGrain(2 * y.dim(1) * DTypeBytes(y.dtype())),
                            [&](int64_t begin, int64_t end) { CpuKernels().gelu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
