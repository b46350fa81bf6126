#include "workers/ops/core/backward_kernels_impl.h"
#include "workers/ops/core/mixed_rows.h"
#include "workers/ops/norm/row_moments.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Elem>
SY_INLINE void NormRowBackward(const LayerNormBackwardArgs& a, int64_t t, AccT<Elem>* dgamma) {
  constexpr int kN = Lanes<Elem>::kCount;
  using Acc = AccT<Elem>;
  const Elem* gamma = static_cast<const Elem*>(a.gamma);
  const auto x = [&](int64_t j, int64_t n) { return LoadMixed<Elem>(a.x, t * a.x_stride + j, n); };
  const auto dy = [&](int64_t j, int64_t n) { return LoadMixed<Elem>(a.dy, t * a.dy_stride + j, n); };
  const auto [mean, scale] = MomentsOf<Elem>(x, a.width, a.eps);
  VecT<Elem> sum = {}, dots = {};
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> dn = LoadPart(gamma + j, n) * dy(j, n);
    sum += dn;
    dots = Fma(dn, (x(j, n) - Splat(mean)) * Splat(scale), dots);
  }
  const VecT<Elem> shift = Splat(SumLanes(sum) / static_cast<Acc>(a.width));
  const VecT<Elem> pull = Splat(SumLanes(dots) / static_cast<Acc>(a.width));
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> normed = (x(j, n) - Splat(mean)) * Splat(scale), d = dy(j, n);
    VecT<Elem> dx = (LoadPart(gamma + j, n) * d - shift - normed * pull) * Splat(scale);
    if (a.accumulate) dx = LoadMixed<Elem>(a.dx, t * a.dx_stride + j, n) + dx;
    StorePart<Acc>(Fma(d, normed, LoadPart(dgamma + j, n)), dgamma + j, n);
    StoreMixed<Elem>(dx, a.dx, t * a.dx_stride + j, n);
  }
}

}  // namespace

void LayerNormBackwardRows(const LayerNormBackwardArgs& a, int64_t begin, int64_t end, void* dgamma) {
  VisitElem(a.dtype, [&]<class Elem>() {
    AccT<Elem>* sums = static_cast<AccT<Elem>*>(dgamma);
    for (int64_t j = 0; j < a.width; ++j) sums[j] = 0;
    for (int64_t t = begin; t < end; ++t) NormRowBackward<Elem>(a, t, sums);
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
