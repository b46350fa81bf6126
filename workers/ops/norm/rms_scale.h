// 1 / sqrt(mean(x²) + eps) of a row: what the norm and its way back both multiply with, the same bits in each.
//
// Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

// Σ x², in four interleaved sums so that their latencies overlap; the order depends on width alone.
template <class In, class Elem>
SY_INLINE AccT<Elem> SumSquares(const In* x, int64_t width) {
  constexpr int kN = Lanes<Elem>::kCount;
  VecT<Elem> sum[4] = {};
  int64_t j = 0;
  for (; j + 4 * kN <= width; j += 4 * kN) {
    for (int i = 0; i < 4; ++i) {
      const VecT<Elem> v = Load(x + j + i * kN);
      sum[i] = Fma(v, v, sum[i]);
    }
  }
  for (; j < width; j += kN) {
    const VecT<Elem> v = LoadPart(x + j, width - j < kN ? width - j : kN);
    sum[0] = Fma(v, v, sum[0]);
  }
  return SumLanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class In, class Elem>
SY_INLINE AccT<Elem> RmsScale(const In* x, int64_t width, double eps) {
  using AccType = AccT<Elem>;
  const AccType mean = SumSquares<In, Elem>(x, width) / static_cast<AccType>(width);
  if constexpr (sizeof(AccType) == 8) {
    return AccType{1} / __builtin_sqrt(mean + eps);
  } else {
    return AccType{1} / __builtin_sqrtf(mean + static_cast<float>(eps));
  }
}

}  // namespace
}  // namespace switchyard::ops
