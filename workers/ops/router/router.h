// Chooses each token's experts from its router logits: softmax over all E experts, then top-k (Mixtral, Qwen-MoE,
// OLMoE).
//
// A row's bits depend on that row alone.  Equal scores: the smaller expert id comes first.  NaN counts as smaller than
// every number, and the weights of a row with one are NaN: the row still has K distinct experts, and its output is NaN.
// Errors (InvalidArgument): shapes or dtypes that do not fit, K outside [1, min(E, kMaxTopK)].
// Does not do yet: sigmoid scores, group-limited choice (RouterDesc is their place).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr int64_t kMaxTopK = 64;

struct RouterDesc {
  int64_t top_k = 1;         // K
  bool renormalize = false;  // divide the K weights by their sum
  // [E] dtype of logits: added to the scores when experts are chosen, never to their weights (DeepSeek-V3, §2.1.2;
  // Ernie 4.5 for softmax scores).  Rank 0: none.
  TensorView bias = {};
  // On a device: rows from *num_rows on, a graph's padding, choose no expert (-1, weight 0); null: all rows count.
  const int32_t* num_rows = nullptr;
};

absl::Status RouteTopK(const Stream& stream, const RouterDesc& desc,
                       const TensorView& logits,        // [T, E] fp32 or fp64
                       const TensorView& topk_idx,      // [T, K] int32, by falling score (with its bias)
                       const TensorView& topk_weight);  // [T, K] dtype of logits

}  // namespace switchyard::ops
