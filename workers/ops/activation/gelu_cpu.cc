#include "workers/ops/activation/gelu_function.h"
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void GeluRows(const GeluArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t t = begin; t < end; ++t) {
      const Elem* x = static_cast<const Elem*>(a.x) + t * a.x_stride;
      Elem* y = static_cast<Elem*>(a.y) + t * a.y_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        StorePart<Elem>(GeluOf(LoadPart(x + j, n), a.tanh), y + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
