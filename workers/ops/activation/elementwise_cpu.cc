// The ops that treat every element by itself: embedding, clamp.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void EmbedRows(const EmbedArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t t = begin; t < end; ++t) {
      const Elem* from = static_cast<const Elem*>(a.table) + a.tokens[t] * a.table_stride;
      AccT<Elem>* to = static_cast<AccT<Elem>*>(a.residual) + t * a.residual_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> row = LoadPart(from + j, n);
        StorePart(a.accumulate ? LoadPart(to + j, n) + row : row, to + j, n);
      }
    }
  });
}

void ClampRows(const ClampArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    const VecT<Elem> limit = Splat(static_cast<AccT<Elem>>(a.limit));
    for (int64_t t = begin; t < end; ++t) {
      Elem* x = static_cast<Elem*>(a.x) + t * a.x_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        VecT<Elem> v = LoadPart(x + j, n);
        v = v > limit ? limit : v;  // false for NaN, which stays NaN
        v = v < -limit ? -limit : v;
        StorePart<Elem>(v, x + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
