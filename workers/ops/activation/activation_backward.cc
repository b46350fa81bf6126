#include "workers/ops/activation/activation_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"

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
                                 .x = RowsOf(sums),
                                 .dy = RowsOf(dhidden),
                                 .dx = RowsOf(dsums),
                                 .width = dhidden.dim(1)};
  return RunOnCpu(stream, dhidden.dim(0), 3 * args.width * DTypeBytes(dhidden.dtype()), CpuKernels().gelu_backward,
                  args);
}

absl::Status SwiGluBackward(const Stream& stream, const TensorView& sums, const TensorView& dhidden,
                            const TensorView& dsums) {
  const OpSite at = {"swiglu_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dhidden", dhidden));
  const Shape shape = {dhidden.dim(0), 2 * dhidden.dim(1)};
  RETURN_IF_ERROR(ExpectView(at, "sums", sums, dhidden.dtype(), shape));
  RETURN_IF_ERROR(ExpectView(at, "dsums", dsums, dhidden.dtype(), shape));
  const SwiGluBackwardArgs args = {.dtype = DTypeCode(dhidden.dtype()),
                                   .sums = RowsOf(sums),
                                   .dhidden = RowsOf(dhidden),
                                   .dsums = RowsOf(dsums),
                                   .width = dhidden.dim(1)};
  return RunOnCpu(stream, dhidden.dim(0), 5 * args.width * DTypeBytes(dhidden.dtype()), CpuKernels().swiglu_backward,
                  args);
}

}  // namespace switchyard::ops
