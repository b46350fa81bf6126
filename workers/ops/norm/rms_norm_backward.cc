#include "workers/ops/norm/rms_norm_backward.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/norm/row_block_sums.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

struct Views {
  const TensorView &x, &gamma, &dy, &dx;
};

absl::Status Check(const OpSite& at, const RmsNormBackwardDesc& desc, const Views& views) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dy", views.dy));
  const DType dtype = views.gamma.dtype(), acc = AccDType(dtype);
  const int64_t row = views.dy.dim(1), width = desc.head_dim > 0 ? desc.head_dim : row;
  if (width <= 0 || row % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(at.op, ": row width ", row, " is not a positive multiple of head_dim ", width));
  }
  if (!IsFloating(dtype)) return ExpectView(at, "gamma", views.gamma, views.dy.dtype(), {width});
  RETURN_IF_ERROR(ExpectView(at, "gamma", views.gamma, dtype, {width}));
  const auto either = [&](const TensorView& view) { return view.dtype() == dtype ? dtype : acc; };
  RETURN_IF_ERROR(ExpectView(at, "dy", views.dy, either(views.dy), views.dy.shape()));
  RETURN_IF_ERROR(ExpectView(at, "x", views.x, either(views.x), views.dy.shape()));
  RETURN_IF_ERROR(ExpectView(at, "dx", views.dx, desc.accumulate ? acc : either(views.dx), views.dy.shape()));
  if (desc.dgamma.raw() == nullptr) return absl::OkStatus();
  return ExpectView(at, "dgamma", desc.dgamma, acc, {width});
}

}  // namespace

absl::Status RmsNormBackward(const Stream& stream, const RmsNormBackwardDesc& desc, const TensorView& x,
                             const TensorView& gamma, const TensorView& dy, const TensorView& dx) {
  const OpSite at = {"rms_norm_backward", stream.device()};
  RETURN_IF_ERROR(Check(at, desc, {x, gamma, dy, dx}));
  const int64_t width = gamma.dim(0), rows = dy.dim(0);
  const DType dtype = gamma.dtype();
  const NormBackwardArgs args = {.dtype = DTypeCode(dtype),
                                 .x = MixedRowsOf(x, dtype),
                                 .dy = MixedRowsOf(dy, dtype),
                                 .dx = MixedRowsOf(dx, dtype),
                                 .gamma = gamma.raw(),
                                 .groups = dy.dim(1) / width,
                                 .width = width,
                                 .eps = desc.eps,
                                 .accumulate = desc.accumulate};
  const auto kernel = CpuKernels().rms_norm_backward;
  if (desc.dgamma.raw() == nullptr) {
    stream.pool().ParallelFor(rows, RowGrain(4 * dy.dim(1) * DTypeBytes(dx.dtype())),
                              [&](int64_t begin, int64_t end) { kernel(args, begin, end, nullptr); });
    return absl::OkStatus();
  }
  AddRowBlocks(stream, rows, desc.dgamma.dtype(), width, desc.dgamma.raw(),
               [&](int64_t begin, int64_t end, void* sums) { kernel(args, begin, end, sums); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
