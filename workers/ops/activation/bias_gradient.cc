#include "workers/ops/activation/bias_gradient.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/norm/row_block_sums.h"

namespace switchyard::ops {

absl::Status BiasGradient(const Stream& stream, const TensorView& dy, const TensorView& gradient) {
  const OpSite at = {"bias_gradient", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dy", dy));
  RETURN_IF_ERROR(ExpectView(at, "gradient", gradient, AccDType(dy.dtype()), {dy.dim(1)}));
  const ColumnSumArgs args = {.dtype = DTypeCode(dy.dtype()), .x = RowsOf(dy), .width = dy.dim(1)};
  AddRowBlocks(stream, dy.dim(0), gradient.dtype(), dy.dim(1), gradient.raw(),
               [&](int64_t begin, int64_t end, void* sums) { CpuKernels().column_sums(args, begin, end, sums); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
