#include "workers/ops/router/router_backward.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/ops/norm/row_block_sums.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

absl::Status CheckChoice(const OpSite& at, const TensorView& logits, const TensorView& topk_idx) {
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "logits", logits));
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, AccDType(logits.dtype()), logits.shape()));
  RETURN_IF_ERROR(ExpectView(at, "topk_idx", topk_idx, DType::kI32, {logits.dim(0), topk_idx.dim(1)}));
  const int64_t experts = logits.dim(1), top_k = topk_idx.dim(1), most = std::min(experts, kMaxTopK);
  if (top_k < 1 || top_k > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(at.op, ": top_k must be in [1, ", most, "] for ", experts, " experts, is ", top_k));
  }
  for (int64_t t = 0; t < topk_idx.dim(0); ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t expert = topk_idx.row<int32_t>(t)[k];
      if (expert >= -1 && expert < experts) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(at.op, ": topk_idx[", t, ", ", k, "] = ", expert, " is outside [-1, ", experts, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RouterBackward(const Stream& stream, const RouterBackwardDesc& desc, const TensorView& logits,
                            const TensorView& topk_idx, const TensorView& d_topk_weight, const TensorView& dlogits) {
  const OpSite at = {"router_backward", stream.device()};
  RETURN_IF_ERROR(CheckChoice(at, logits, topk_idx));
  RETURN_IF_ERROR(ExpectView(at, "d_topk_weight", d_topk_weight, logits.dtype(), topk_idx.shape()));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dlogits", dlogits));
  RETURN_IF_ERROR(ExpectView(at, "dlogits", dlogits, dlogits.dtype(), logits.shape()));
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, AccDType(dlogits.dtype()), logits.shape()));
  const int64_t experts = logits.dim(1);
  if (!desc.prob_gradient.empty() && static_cast<int64_t>(desc.prob_gradient.size()) != experts) {
    return absl::InvalidArgumentError(absl::StrCat("router_backward: prob_gradient must be ", experts,
                                                   " numbers or none, is ", desc.prob_gradient.size()));
  }
  const RouterBackwardArgs args = {.dtype = DTypeCode(dlogits.dtype()),
                                   .logits = RowsOf(logits),
                                   .topk_idx = RowsOf(topk_idx),
                                   .dtopk_weight = RowsOf(d_topk_weight),
                                   .dprob = desc.prob_gradient.empty() ? nullptr : desc.prob_gradient.data(),
                                   .dlogits = RowsOf(dlogits),
                                   .experts = experts,
                                   .top_k = topk_idx.dim(1),
                                   .renormalize = desc.renormalize,
                                   .z_scale = desc.z_scale};
  stream.pool().ParallelFor(logits.dim(0), 16, [&](int64_t begin, int64_t end) {
    void* const scratch = ThreadScratch(ScratchUse::kTask, 2 * experts * DTypeBytes(logits.dtype()));
    CpuKernels().router_backward(args, begin, end, scratch);
  });
  return absl::OkStatus();
}

absl::Status ComputeRouterStatistics(const Stream& stream, const TensorView& logits, const TensorView& topk_idx,
                                     RouterStatistics* statistics) {
  RETURN_IF_ERROR(CheckChoice({"router_statistics", stream.device()}, logits, topk_idx));
  const int64_t experts = logits.dim(1), top_k = topk_idx.dim(1);
  statistics->counts.assign(top_k * experts, 0);
  for (int64_t t = 0; t < topk_idx.dim(0); ++t) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t expert = topk_idx.row<int32_t>(t)[k];
      if (expert >= 0) ++statistics->counts[k * experts + expert];
    }
  }
  // The kernel's last sum stands behind the experts'.
  std::vector<double>& sums = statistics->probability_sums;
  sums.assign(experts + 1, 0.0);
  const RouterSumsArgs args = {.dtype = DTypeCode(logits.dtype()), .logits = RowsOf(logits), .experts = experts};
  AddRowBlocks(stream, logits.dim(0), DType::kF64, experts + 1, sums.data(),
               [&](int64_t begin, int64_t end, void* block) { CpuKernels().router_sums(args, begin, end, block); });
  statistics->squared_logsumexp_sum = sums.back();
  sums.pop_back();
  return absl::OkStatus();
}

}  // namespace switchyard::ops
