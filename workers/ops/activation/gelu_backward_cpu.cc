#include "workers/ops/activation/gelu_function.h"
#include "workers/ops/core/backward_kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void GeluBackwardRows(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t t = begin; t < end; ++t) {
      const Elem* x = static_cast<const Elem*>(a.x) + t * a.x_stride;
      const Elem* dy = static_cast<const Elem*>(a.dy) + t * a.dy_stride;
      Elem* dx = static_cast<Elem*>(a.dx) + t * a.dx_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        StorePart<Elem>(LoadPart(dy + j, n) * GeluSlope(LoadPart(x + j, n), a.tanh), dx + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
