#include "workers/ops/swiglu.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/kernels.h"
#include "workers/ops/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status SwiGlu(const Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y) {
  RETURN_IF_ERROR(ExpectCpu("swiglu", stream));
  RETURN_IF_ERROR(ExpectFloatMatrix("swiglu", "y", y));
  RETURN_IF_ERROR(ExpectView("swiglu", "gate", gate, y.dtype(), y.shape()));
  RETURN_IF_ERROR(ExpectView("swiglu", "up", up, y.dtype(), y.shape()));
  const SwiGluArgs args = {.dtype = DTypeCode(y.dtype()),
                           .gate = gate.raw(),
                           .up = up.raw(),
                           .y = y.raw(),
                           .gate_stride = gate.row_stride(),
                           .up_stride = up.row_stride(),
                           .y_stride = y.row_stride(),
                           .width = y.dim(1)};
  stream.pool().ParallelFor(y.dim(0), RowGrain(3 * y.dim(1) * DTypeBytes(y.dtype())),
                            [&](int64_t begin, int64_t end) { CpuKernels().swiglu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard
