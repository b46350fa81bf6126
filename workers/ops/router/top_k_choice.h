// Finds the K largest of a row's scores.  Internal to workers/ops; static for kernel files (simd.h).
#pragma once

#include <cstdint>

namespace switchyard::ops {

// NaN is below every number, -Inf included.
template <class Number>
static inline __attribute__((always_inline)) bool Above(Number a, Number b) {
  return a > b || (b != b && a == a);
}

// Insertion into a short sorted list: later ids go behind equal ones, so ties go to the smaller id.
template <class Number>
static inline __attribute__((always_inline)) void ChooseTopK(const Number* scores, int64_t experts, int64_t top_k,
                                                             int32_t* idx) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (held == top_k && !Above(scores[e], scores[idx[held - 1]])) continue;
    int64_t at = held < top_k ? held++ : held - 1;
    for (; at > 0 && Above(scores[e], scores[idx[at - 1]]); --at) idx[at] = idx[at - 1];
    idx[at] = static_cast<int32_t>(e);
  }
}

}  // namespace switchyard::ops
