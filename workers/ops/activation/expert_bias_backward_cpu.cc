#include "workers/ops/core/backward_kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void ExpertBiasBackwardRows(const ExpertBiasBackwardArgs& a, int64_t begin, int64_t end, void* sums) {
  VisitElem(a.dtype, [&]<class Elem>() {
    using Acc = AccT<Elem>;
    constexpr int kN = Lanes<Elem>::kCount;
    Acc* to = static_cast<Acc*>(sums);
    const Elem* bias = static_cast<const Elem*>(a.bias);
    for (int64_t j = 0; j < a.width; ++j) to[j] = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Elem* d = static_cast<const Elem*>(a.d) + (a.rows == nullptr ? i : a.rows[i]) * a.d_stride;
      const VecT<Elem> weight = Splat(static_cast<const Acc*>(a.weight)[i * a.weight_stride]);
      VecT<Elem> dot = {};
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> gradient = LoadPart(d + j, n);
        dot = Fma(gradient, LoadPart(bias + j, n), dot);
        StorePart<Acc>(Fma(weight, gradient, LoadPart(to + j, n)), to + j, n);
      }
      static_cast<Acc*>(a.dweight)[i * a.dweight_stride] += SumLanes(dot);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
