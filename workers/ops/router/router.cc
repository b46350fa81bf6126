#include "workers/ops/router/router.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/router/router_biased.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status RouteTopK(const Stream& stream, const RouterDesc& desc, const TensorView& logits,
                       const TensorView& topk_idx, const TensorView& topk_weight) {
  const OpSite at = {"router", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "logits", logits));
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, AccDType(logits.dtype()), logits.shape()));
  const int64_t num_tokens = logits.dim(0), most = std::min(logits.dim(1), kMaxTopK);
  if (desc.top_k < 1 || desc.top_k > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("router: top_k must be in [1, ", most, "] for ", logits.dim(1), " experts, is ", desc.top_k));
  }
  RETURN_IF_ERROR(ExpectView(at, "topk_idx", topk_idx, DType::kI32, {num_tokens, desc.top_k}));
  RETURN_IF_ERROR(ExpectView(at, "topk_weight", topk_weight, logits.dtype(), {num_tokens, desc.top_k}));
  if (desc.bias.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "bias", desc.bias, logits.dtype(), {logits.dim(1)}));
    if (stream.device().is_cpu()) {
      stream.pool().ParallelFor(num_tokens, 16, [&](int64_t begin, int64_t end) {
        RouteBiasedRows(desc, logits, topk_idx, topk_weight, begin, end);
      });
      return absl::OkStatus();
    }
  }
  const RouterArgs args = {.dtype = DTypeCode(logits.dtype()),
                           .logits = logits.raw(),
                           .topk_idx = topk_idx.data<int32_t>(),
                           .topk_weight = topk_weight.raw(),
                           .logits_stride = logits.row_stride(),
                           .idx_stride = topk_idx.row_stride(),
                           .weight_stride = topk_weight.row_stride(),
                           .experts = logits.dim(1),
                           .top_k = desc.top_k,
                           .renormalize = desc.renormalize};
  if (!stream.device().is_cpu()) {
    const void* const bias = desc.bias.rank() == 0 ? nullptr : desc.bias.raw();
    return RunOnCuda("router", stream, &CudaKernelTable::router, CudaRouterArgs{args, desc.num_rows, bias}, num_tokens);
  }
  stream.pool().ParallelFor(num_tokens, 16, [&](int64_t begin, int64_t end) { CpuKernels().router(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
