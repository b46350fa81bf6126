#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
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

template <bool kInverse>
SY_INLINE void Rotate(const RopeArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) {
      const AccT<Elem>* cos = static_cast<const AccT<Elem>*>(a.cos) + a.table_rows[t] * a.half;
      const AccT<Elem>* sin = static_cast<const AccT<Elem>*>(a.sin) + a.table_rows[t] * a.half;
      Elem* row = static_cast<Elem*>(a.x) + t * a.x_stride;
      for (int64_t h = 0; h < a.heads; ++h) RotateHead<kInverse>(cos, sin, a.half, row + h * a.head_dim);
    }
  });
}

}  // namespace

void RopeRows(const RopeArgs& args, int64_t begin, int64_t end) { Rotate<false>(args, begin, end); }
void RopeBackwardRows(const RopeArgs& args, int64_t begin, int64_t end) { Rotate<true>(args, begin, end); }

}  // namespace switchyard::ops::SY_KERNEL_NS
