// The backward pass of RouteTopK (router.h), with the gradients of the losses that balance experts; and the sums that
// those losses are computed from.
//
// With p = softmax(logits) and w the K chosen elements, divided by their sum if renormalize:
//   dp = prob_gradient + (dw through w),   dlogits = p · (dp - Σ p · dp) + 2 · z_scale · logsumexp(logits) · p.
// The choice itself has no gradient.  In AccDType, rounded once; a row's bits depend on that row alone.
// Borrows all memory.  CPU only so far.  Errors (InvalidArgument): shapes or dtypes that do not fit, an expert outside
// [-1, E), K outside [1, min(E, kMaxTopK)].
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct RouterBackwardDesc {
  bool renormalize = false;  // as in RouterDesc
  // [E] or empty: dL/dp of every row, from losses of the batch's probability sums (load balancing).
  absl::Span<const double> prob_gradient = {};
  double z_scale = 0;  // of Σ over rows of logsumexp(logits)² in the loss (router z-loss)
};

// topk_idx: RouteTopK's.  A pair that was dropped after that (expert_capacity.h) has a d_topk_weight of 0; the divisor
// of renormalize still includes its expert.  -1: no expert; it counts nowhere.
absl::Status RouterBackward(const Stream& stream, const RouterBackwardDesc& desc,
                            const TensorView& logits,         // [T, E] AccDType of dlogits's
                            const TensorView& topk_idx,       // [T, K] int32
                            const TensorView& d_topk_weight,  // [T, K] dtype of logits
                            const TensorView& dlogits);       // [T, E] model dtype, written

// Sums of one batch and layer; losses divide them by the global number of tokens.
struct RouterStatistics {
  std::vector<int64_t> counts;           // [K, E] rows with e as their k-th choice; -1 does not count
  std::vector<double> probability_sums;  // [E] Σ over rows of softmax(logits)
  double squared_logsumexp_sum = 0;      // Σ over rows of logsumexp(logits)²
};

// Replaces *statistics.  Sums are in double, in a tree that depends on the number of rows alone (row_block_sums.h).
absl::Status ComputeRouterStatistics(const Stream& stream,
                                     const TensorView& logits,    // [T, E] fp32 or fp64
                                     const TensorView& topk_idx,  // [T, K] int32
                                     RouterStatistics* statistics);

}  // namespace switchyard::ops
