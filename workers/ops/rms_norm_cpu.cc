#include "workers/ops/kernels_impl.h"

namespace switchyard::SY_KERNEL_NS {
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
SY_INLINE void NormGroup(const In* x, const Elem* gamma, double eps, int64_t width, Elem* y) {
  using AccType = AccT<Elem>;
  constexpr int kN = Lanes<Elem>::kCount;
  const AccType mean = SumSquares<In, Elem>(x, width) / static_cast<AccType>(width);
  AccType root;
  if constexpr (sizeof(AccType) == 8) {
    root = __builtin_sqrt(mean + eps);
  } else {
    root = __builtin_sqrtf(mean + static_cast<float>(eps));
  }
  const VecT<Elem> scale = Splat(AccType{1} / root);
  for (int64_t j = 0; j < width; j += kN) {
    const int64_t n = width - j < kN ? width - j : kN;
    StorePart<Elem>(LoadPart(gamma + j, n) * Round<Elem>(LoadPart(x + j, n) * scale), y + j, n);
  }
}

template <class In, class Elem>
void Rows(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
    Elem* y = static_cast<Elem*>(a.y) + t * a.y_stride;
    for (int64_t g = 0; g < a.groups; ++g) {
      NormGroup<In, Elem>(x + g * a.width, static_cast<const Elem*>(a.gamma), a.eps, a.width, y + g * a.width);
    }
  }
}

}  // namespace

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.x_dtype == args.dtype) {
      Rows<Elem, Elem>(args, begin, end);
    } else {
      Rows<AccT<Elem>, Elem>(args, begin, end);
    }
  });
}

}  // namespace switchyard::SY_KERNEL_NS
