#include "workers/ops/activation/swiglu.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status SwiGlu(const Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y) {
  const OpSite at = {"swiglu", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "y", y));
  RETURN_IF_ERROR(ExpectView(at, "gate", gate, y.dtype(), y.shape()));
  RETURN_IF_ERROR(ExpectView(at, "up", up, y.dtype(), y.shape()));
  const SwiGluArgs args = {.dtype = DTypeCode(y.dtype()),
                           .gate = gate.raw(),
                           .up = up.raw(),
                           .y = y.raw(),
                           .gate_stride = gate.row_stride(),
                           .up_stride = up.row_stride(),
                           .y_stride = y.row_stride(),
                           .width = y.dim(1)};
  if (!stream.device().is_cpu()) {
    return RunOnCuda("swiglu", stream, [&](const CudaCall& call, const CudaKernelTable& kernels) {
      return kernels.swiglu(call, args, y.dim(0));
    });
  }
  stream.pool().ParallelFor(y.dim(0), RowGrain(3 * y.dim(1) * DTypeBytes(y.dtype())),
                            [&](int64_t begin, int64_t end) { CpuKernels().swiglu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard
