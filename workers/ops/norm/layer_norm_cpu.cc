// LayerNorm forward and backward, with the same bits of mean and scale in both.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Acc>
struct RowMoments {
  Acc mean, scale;
};

// load(j, n): the row's elements [j, j + n) and zeros.  Two passes: the second one's differences are small where the
// mean is large.
template <class Elem, class Load>
SY_INLINE RowMoments<AccT<Elem>> MomentsOf(const Load& load, int64_t width, double eps) {
  using Acc = AccT<Elem>;
  constexpr int kN = Lanes<Elem>::kCount;
  VecT<Elem> sum = {}, squares = {};
  for (int64_t j = 0; j < width; j += kN) sum += load(j, width - j < kN ? width - j : kN);
  const Acc mean = SumLanes(sum) / static_cast<Acc>(width);
  for (int64_t j = 0; j < width; j += kN) {
    const int64_t n = width - j < kN ? width - j : kN;
    VecT<Elem> difference = load(j, n) - Splat(mean);
    for (int64_t i = n; i < kN; ++i) difference[i] = 0;
    squares = Fma(difference, difference, squares);
  }
  const Acc variance = SumLanes(squares) / static_cast<Acc>(width);
  return {mean, Acc{1} / Sqrt(variance + static_cast<Acc>(eps))};
}

template <class In, class Elem>
void Rows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  constexpr int kN = Lanes<Elem>::kCount;
  const Elem *gamma = static_cast<const Elem*>(a.gamma), *beta = static_cast<const Elem*>(a.beta);
  for (int64_t t = begin; t < end; ++t) {
    const In* x = RowAt<In>(a.x, t);
    Elem* y = RowAt<Elem>(a.y, t);
    const auto [mean, scale] =
        MomentsOf<Elem>([&](int64_t j, int64_t n) { return LoadPart(x + j, n); }, a.width, a.eps);
    for (int64_t j = 0; j < a.width; j += kN) {
      const int64_t n = a.width - j < kN ? a.width - j : kN;
      const VecT<Elem> normed = (LoadPart(x + j, n) - Splat(mean)) * Splat(scale);
      StorePart<Elem>(Fma(normed, LoadPart(gamma + j, n), LoadPart(beta + j, n)), y + j, n);
    }
  }
}

template <class Elem>
SY_INLINE void NormRowBackward(const NormBackwardArgs& a, int64_t t, AccT<Elem>* dgamma) {
  constexpr int kN = Lanes<Elem>::kCount;
  using Acc = AccT<Elem>;
  const Elem* gamma = static_cast<const Elem*>(a.gamma);
  const auto x = [&](int64_t j, int64_t n) { return LoadMixed<Elem>(a.x, t, j, n); };
  const auto dy = [&](int64_t j, int64_t n) { return LoadMixed<Elem>(a.dy, t, j, n); };
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
    if (a.accumulate) dx = LoadMixed<Elem>(a.dx, t, j, n) + dx;
    StorePart<Acc>(Fma(d, normed, LoadPart(dgamma + j, n)), dgamma + j, n);
    StoreMixed<Elem>(dx, a.dx, t, j, n);
  }
}

}  // namespace

void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.x_dtype == args.dtype) return Rows<Elem, Elem>(args, begin, end);
    Rows<AccT<Elem>, Elem>(args, begin, end);
  });
}

void LayerNormBackwardRows(const NormBackwardArgs& a, int64_t begin, int64_t end, void* dgamma) {
  VisitElem(a.dtype, [&]<class Elem>() {
    AccT<Elem>* sums = static_cast<AccT<Elem>*>(dgamma);
    for (int64_t j = 0; j < a.width; ++j) sums[j] = 0;
    for (int64_t t = begin; t < end; ++t) NormRowBackward<Elem>(a, t, sums);
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
