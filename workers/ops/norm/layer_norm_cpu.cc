#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/norm/row_moments.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class In, class Elem>
void Rows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  constexpr int kN = Lanes<Elem>::kCount;
  const Elem *gamma = static_cast<const Elem*>(a.gamma), *beta = static_cast<const Elem*>(a.beta);
  for (int64_t t = begin; t < end; ++t) {
    const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
    Elem* y = static_cast<Elem*>(a.y) + t * a.y_stride;
    const auto [mean, scale] =
        MomentsOf<Elem>([&](int64_t j, int64_t n) { return LoadPart(x + j, n); }, a.width, a.eps);
    for (int64_t j = 0; j < a.width; j += kN) {
      const int64_t n = a.width - j < kN ? a.width - j : kN;
      const VecT<Elem> normed = (LoadPart(x + j, n) - Splat(mean)) * Splat(scale);
      StorePart<Elem>(Fma(normed, LoadPart(gamma + j, n), LoadPart(beta + j, n)), y + j, n);
    }
  }
}

}  // namespace

void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.x_dtype == args.dtype) {
      Rows<Elem, Elem>(args, begin, end);
    } else {
      Rows<AccT<Elem>, Elem>(args, begin, end);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
