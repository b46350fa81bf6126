// The rotation of one head, and its way back by the negative angle.
//
// Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

// y1 = x1·cos - x2·sin,  y2 = x2·cos + x1·sin, for the pairs (j, j + half) of one head; the inverse takes -sin.
template <bool kInverse, class Elem>
SY_INLINE void RotateHead(const AccT<Elem>* cos, const AccT<Elem>* sin, int64_t half, Elem* x) {
  constexpr int kN = Lanes<Elem>::kCount;
  for (int64_t j = 0; j < half; j += kN) {
    const int64_t n = half - j < kN ? half - j : kN;
    const VecT<Elem> c = LoadPart(cos + j, n), s = kInverse ? -LoadPart(sin + j, n) : LoadPart(sin + j, n);
    const VecT<Elem> x1 = LoadPart(x + j, n), x2 = LoadPart(x + half + j, n);
    StorePart<Elem>(x1 * c - x2 * s, x + j, n);
    StorePart<Elem>(x2 * c + x1 * s, x + half + j, n);
  }
}

}  // namespace
}  // namespace switchyard::ops
