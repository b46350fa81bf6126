// Mean of a row and 1 / sqrt(variance + eps): what LayerNorm and its way back both take, the same bits in each.
//
// Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

template <class Acc>
struct RowMoments {
  Acc mean, scale;
};

// load(j, n): the row's elements [j, j + n) and zeros.  Two passes: the second one's differences are small where the
// mean is large.
template <class Elem, class Load>
SY_INLINE RowMoments<AccT<Elem>> MomentsOf(const Load& load, int64_t width, double eps) {
  using Acc = AccT<Elem>;
  constexpr int kN = Lanes<Elem>::kCount;
  VecT<Elem> sum = {}, squares = {};
  for (int64_t j = 0; j < width; j += kN) sum += load(j, width - j < kN ? width - j : kN);
  const Acc mean = SumLanes(sum) / static_cast<Acc>(width);
  for (int64_t j = 0; j < width; j += kN) {
    const int64_t n = width - j < kN ? width - j : kN;
    VecT<Elem> difference = load(j, n) - Splat(mean);
    for (int64_t i = n; i < kN; ++i) difference[i] = 0;
    squares = Fma(difference, difference, squares);
  }
  const Acc variance = SumLanes(squares) / static_cast<Acc>(width);
  if constexpr (sizeof(Acc) == 8) {
    return {mean, Acc{1} / __builtin_sqrt(variance + eps)};
  } else {
    return {mean, Acc{1} / __builtin_sqrtf(variance + static_cast<float>(eps))};
  }
}

}  // namespace
}  // namespace switchyard::ops
