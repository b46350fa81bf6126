#include "workers/ops/activation/swiglu_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status SwiGluBackward(const Stream& stream, const TensorView& sums, const TensorView& dhidden,
                            const TensorView& dsums) {
  const OpSite at = {"swiglu_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dhidden", dhidden));
  const Shape shape = {dhidden.dim(0), 2 * dhidden.dim(1)};
  RETURN_IF_ERROR(ExpectView(at, "sums", sums, dhidden.dtype(), shape));
  RETURN_IF_ERROR(ExpectView(at, "dsums", dsums, dhidden.dtype(), shape));
  const SwiGluBackwardArgs args = {.dtype = DTypeCode(dhidden.dtype()),
                                   .sums = sums.raw(),
                                   .dhidden = dhidden.raw(),
                                   .dsums = dsums.raw(),
                                   .sums_stride = sums.row_stride(),
                                   .dhidden_stride = dhidden.row_stride(),
                                   .dsums_stride = dsums.row_stride(),
                                   .width = dhidden.dim(1)};
  stream.pool().ParallelFor(dhidden.dim(0), RowGrain(5 * dhidden.dim(1) * DTypeBytes(dhidden.dtype())),
                            [&](int64_t begin, int64_t end) { BackwardKernels().swiglu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
