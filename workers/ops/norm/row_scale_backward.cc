#include "workers/ops/norm/row_scale_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status RowScaleBackward(const Stream& stream, const RowScaleBackwardRows& rows) {
  const OpSite at = {"row_scale_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "x", rows.x));
  const DType dtype = rows.x.dtype(), acc = AccDType(dtype);
  const Shape numbers = {rows.x.dim(0), 1};
  RETURN_IF_ERROR(ExpectView(at, "weight", rows.weight, acc, numbers));
  RETURN_IF_ERROR(ExpectView(at, "dy", rows.dy, dtype, rows.x.shape()));
  RETURN_IF_ERROR(ExpectView(at, "y", rows.y, dtype, rows.x.shape()));
  RETURN_IF_ERROR(ExpectView(at, "dweight", rows.dweight, acc, numbers));
  const RowScaleBackwardArgs args = {.dtype = DTypeCode(dtype),
                                     .x = rows.x.raw(),
                                     .weight = rows.weight.raw(),
                                     .dy = rows.dy.raw(),
                                     .y = rows.y.raw(),
                                     .dweight = rows.dweight.raw(),
                                     .x_stride = rows.x.row_stride(),
                                     .weight_stride = rows.weight.row_stride(),
                                     .dy_stride = rows.dy.row_stride(),
                                     .y_stride = rows.y.row_stride(),
                                     .dweight_stride = rows.dweight.row_stride(),
                                     .width = rows.x.dim(1)};
  stream.pool().ParallelFor(rows.x.dim(0), RowGrain(4 * rows.x.dim(1) * DTypeBytes(dtype)),
                            [&](int64_t begin, int64_t end) { BackwardKernels().row_scale(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
