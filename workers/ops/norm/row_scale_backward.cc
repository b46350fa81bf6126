#include "workers/ops/norm/row_scale_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

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
                                     .x = RowsOf(rows.x),
                                     .weight = RowsOf(rows.weight),
                                     .dy = RowsOf(rows.dy),
                                     .y = RowsOf(rows.y),
                                     .dweight = RowsOf(rows.dweight),
                                     .width = rows.x.dim(1)};
  return RunOnCpu(stream, rows.x.dim(0), 4 * rows.x.dim(1) * DTypeBytes(dtype), CpuKernels().row_scale_backward, args);
}

}  // namespace switchyard::ops
