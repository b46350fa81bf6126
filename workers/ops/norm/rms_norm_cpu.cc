// RMSNorm forward and backward, with the same bits of the scale in both.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// Σ x², in four interleaved sums so that their latencies overlap; the order depends on width alone.
template <class In, class Elem>
SY_INLINE AccT<Elem> SumSquares(const In* x, int64_t width) {
  constexpr int kN = Lanes<Elem>::kCount;
  VecT<Elem> sum[4] = {};
  int64_t j = 0;
  for (; j + 4 * kN <= width; j += 4 * kN) {
    for (int i = 0; i < 4; ++i) {
      const VecT<Elem> v = Load(x + j + i * kN);
      sum[i] = Fma(v, v, sum[i]);
    }
  }
  for (; j < width; j += kN) {
    const VecT<Elem> v = LoadPart(x + j, width - j < kN ? width - j : kN);
    sum[0] = Fma(v, v, sum[0]);
  }
  return SumLanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class In, class Elem>
SY_INLINE AccT<Elem> RmsScale(const In* x, int64_t width, double eps) {
  using AccType = AccT<Elem>;
  const AccType mean = SumSquares<In, Elem>(x, width) / static_cast<AccType>(width);
  return AccType{1} / Sqrt(mean + static_cast<AccType>(eps));
}

template <class In, class Elem>
SY_INLINE void NormGroup(const In* x, const RmsNormArgs& a, Elem* y) {
  constexpr int kN = Lanes<Elem>::kCount;
  const Elem* gamma = static_cast<const Elem*>(a.gamma);
  const VecT<Elem> scale = Splat(RmsScale<In, Elem>(x, a.width, a.eps));
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> normed = LoadPart(x + j, n) * scale;
    StorePart<Elem>(LoadPart(gamma + j, n) * (a.rounds_once ? normed : Round<Elem>(normed)), y + j, n);
  }
}

template <class In, class Elem>
void Rows(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
    Elem* y = static_cast<Elem*>(a.y) + t * a.y_stride;
    for (int64_t g = 0; g < a.groups; ++g) {
      NormGroup<In, Elem>(x + g * a.width, a, y + g * a.width);
    }
  }
}

// The group of row t that begins at column `first`.
template <class Elem>
SY_INLINE void NormGroupBackward(const NormBackwardArgs& a, int64_t t, int64_t first, AccT<Elem>* dgamma) {
  constexpr int kN = Lanes<Elem>::kCount;
  const Elem* gamma = static_cast<const Elem*>(a.gamma);
  const AccT<Elem> scale =
      a.x.acc ? RmsScale<AccT<Elem>, Elem>(static_cast<AccT<Elem>*>(a.x.at) + t * a.x.stride + first, a.width, a.eps)
              : RmsScale<Elem, Elem>(static_cast<Elem*>(a.x.at) + t * a.x.stride + first, a.width, a.eps);
  VecT<Elem> dots = {};
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> dn = LoadPart(gamma + j, n) * LoadMixed<Elem>(a.dy, t, first + j, n);
    dots = Fma(dn, LoadMixed<Elem>(a.x, t, first + j, n), dots);
  }
  const VecT<Elem> pull = Splat(SumLanes(dots) * scale * scale / static_cast<AccT<Elem>>(a.width));
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> x = LoadMixed<Elem>(a.x, t, first + j, n), dy = LoadMixed<Elem>(a.dy, t, first + j, n);
    VecT<Elem> dx = (LoadPart(gamma + j, n) * dy - x * pull) * scale;
    if (a.accumulate) dx = LoadMixed<Elem>(a.dx, t, first + j, n) + dx;
    StoreMixed<Elem>(dx, a.dx, t, first + j, n);
    if (dgamma == nullptr) continue;
    StorePart<AccT<Elem>>(Fma(dy, Round<Elem>(x * scale), LoadPart(dgamma + j, n)), dgamma + j, n);
  }
}

}  // namespace

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.x_dtype == args.dtype) return Rows<Elem, Elem>(args, begin, end);
    Rows<AccT<Elem>, Elem>(args, begin, end);
  });
}

void RmsNormBackwardRows(const NormBackwardArgs& a, int64_t begin, int64_t end, void* dgamma) {
  VisitElem(a.dtype, [&]<class Elem>() {
    AccT<Elem>* sums = static_cast<AccT<Elem>*>(dgamma);
    for (int64_t j = 0; sums != nullptr && j < a.width; ++j) sums[j] = 0;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t g = 0; g < a.groups; ++g) NormGroupBackward<Elem>(a, t, g * a.width, sums);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
