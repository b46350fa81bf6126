#include "workers/ops/activation/activation_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/swiglu_backward.h"
#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status ActivationBackward(const Stream& stream, Activation activation, const TensorView& sums,
                                const TensorView& dhidden, const TensorView& dsums) {
  if (IsGated(activation)) return SwiGluBackward(stream, sums, dhidden, dsums);
  const OpSite at = {"gelu_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dhidden", dhidden));
  RETURN_IF_ERROR(ExpectView(at, "sums", sums, dhidden.dtype(), dhidden.shape()));
  RETURN_IF_ERROR(ExpectView(at, "dsums", dsums, dhidden.dtype(), dhidden.shape()));
  const GeluBackwardArgs args = {.dtype = DTypeCode(dhidden.dtype()),
                                 .tanh = activation == Activation::kGeluTanh,
                                 .x = sums.raw(),
                                 .dy = dhidden.raw(),
                                 .dx = dsums.raw(),
                                 .x_stride = sums.row_stride(),
                                 .dy_stride = dhidden.row_stride(),
                                 .dx_stride = dsums.row_stride(),
                                 .width = dhidden.dim(1)};
  stream.pool().ParallelFor(dhidden.dim(0), RowGrain(3 * dhidden.dim(1) * DTypeBytes(dhidden.dtype())),
                            [&](int64_t begin, int64_t end) { BackwardKernels().gelu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
