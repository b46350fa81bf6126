#include "workers/ops/core/backward_kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void RowScaleBackwardRows(const RowScaleBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t i = begin; i < end; ++i) {
      const Elem* x = static_cast<const Elem*>(a.x) + i * a.x_stride;
      Elem* dy = static_cast<Elem*>(a.dy) + i * a.dy_stride;
      Elem* y = static_cast<Elem*>(a.y) + i * a.y_stride;
      const VecT<Elem> weight = Splat(static_cast<const AccT<Elem>*>(a.weight)[i * a.weight_stride]);
      VecT<Elem> sum = {};
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> in = LoadPart(x + j, n), gradient = LoadPart(dy + j, n);
        sum = Fma(gradient, in, sum);
        StorePart<Elem>(weight * gradient, dy + j, n);
        StorePart<Elem>(weight * in, y + j, n);
      }
      static_cast<AccT<Elem>*>(a.dweight)[i * a.dweight_stride] = SumLanes(sum);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
