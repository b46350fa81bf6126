// Which K of a row's logits a router takes.  Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

// NaN is below every number, -Inf included.
template <class Acc>
SY_INLINE bool Above(Acc a, Acc b) {
  return a > b || (b != b && a == a);
}

// Insertion into a short sorted list: later ids go behind equal ones, so ties go to the smaller id.
template <class Acc>
SY_INLINE void ChooseTopK(const Acc* logits, int64_t experts, int64_t top_k, int32_t* idx) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (held == top_k && !Above(logits[e], logits[idx[held - 1]])) continue;
    int64_t at = held < top_k ? held++ : held - 1;
    for (; at > 0 && Above(logits[e], logits[idx[at - 1]]); --at) idx[at] = idx[at - 1];
    idx[at] = static_cast<int32_t>(e);
  }
}

}  // namespace
}  // namespace switchyard::ops
