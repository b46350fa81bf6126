#include "workers/ops/norm/layer_norm_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/bias_gradient.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/norm/row_block_sums.h"

namespace switchyard::ops {
namespace {

absl::Status Check(const OpSite& at, const LayerNormBackwardDesc& desc, const TensorView& x, const TensorView& dy,
                   const TensorView& dx) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dy", dy));
  const DType given = desc.gamma.dtype(), dtype = IsFloating(given) ? given : dy.dtype(), acc = AccDType(dtype);
  const int64_t width = dy.dim(1);
  RETURN_IF_ERROR(ExpectView(at, "gamma", desc.gamma, dtype, {width}));
  const auto either = [&](const TensorView& view) { return view.dtype() == dtype ? dtype : acc; };
  RETURN_IF_ERROR(ExpectView(at, "dy", dy, either(dy), dy.shape()));
  RETURN_IF_ERROR(ExpectView(at, "x", x, either(x), dy.shape()));
  RETURN_IF_ERROR(ExpectView(at, "dx", dx, desc.accumulate ? acc : either(dx), dy.shape()));
  if (desc.dgamma.raw() != nullptr) RETURN_IF_ERROR(ExpectView(at, "dgamma", desc.dgamma, acc, {width}));
  return desc.dbeta.raw() != nullptr ? ExpectView(at, "dbeta", desc.dbeta, acc, {width}) : absl::OkStatus();
}

}  // namespace

absl::Status LayerNormBackward(const Stream& stream, const LayerNormBackwardDesc& desc, const TensorView& x,
                               const TensorView& dy, const TensorView& dx) {
  RETURN_IF_ERROR(Check({"layer_norm_backward", stream.device()}, desc, x, dy, dx));
  if (desc.dbeta.raw() != nullptr) RETURN_IF_ERROR(BiasGradient(stream, dy, desc.dbeta));  // dx may take dy's place
  const DType dtype = desc.gamma.dtype();
  const NormBackwardArgs args = {.dtype = DTypeCode(dtype),
                                 .x = MixedRowsOf(x, dtype),
                                 .dy = MixedRowsOf(dy, dtype),
                                 .dx = MixedRowsOf(dx, dtype),
                                 .gamma = desc.gamma.raw(),
                                 .groups = 1,
                                 .width = dy.dim(1),
                                 .eps = desc.eps,
                                 .accumulate = desc.accumulate};
  const auto kernel = CpuKernels().layer_norm_backward;
  AddRowBlocks(stream, dy.dim(0), AccDType(dtype), args.width, desc.dgamma.raw(),
               [&](int64_t begin, int64_t end, void* sums) { kernel(args, begin, end, sums); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
