// The optimizer's step and the norm for clipping: one pass over memory.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Acc>
SY_INLINE void Step(const AdamWArgs& a, int64_t begin, int64_t end) {
  constexpr int kN = Lanes<Acc>::kCount;
  const Acc scale = static_cast<Acc>(a.gradient_scale), decay = static_cast<Acc>(a.decay);
  const Acc new1 = static_cast<Acc>(1 - a.beta1), beta2 = static_cast<Acc>(a.beta2);
  const Acc new2 = static_cast<Acc>(1 - a.beta2), eps = static_cast<Acc>(a.eps);
  const Acc step = static_cast<Acc>(a.step_size), root_correction = static_cast<Acc>(a.root_correction);
  Acc *const parameter = static_cast<Acc*>(a.parameter), *const m = static_cast<Acc*>(a.m),
             *const v = static_cast<Acc*>(a.v);
  const Acc* const gradient = static_cast<const Acc*>(a.gradient);
  for (int64_t i = begin; i < end; i += kN) {
    const int64_t n = end - i < kN ? end - i : kN;
    const VecT<Acc> g = LoadPart(gradient + i, n) * scale;
    const VecT<Acc> first = Fma(Splat(new1), g - LoadPart(m + i, n), LoadPart(m + i, n));
    const VecT<Acc> second = Fma(g * g, Splat(new2), LoadPart(v + i, n) * beta2);
    const VecT<Acc> root = Sqrt(second) / root_correction + eps;
    StorePart<Acc>(first, m + i, n);
    StorePart<Acc>(second, v + i, n);
    StorePart<Acc>(LoadPart(parameter + i, n) * decay - step * (first / root), parameter + i, n);
  }
}

SY_INLINE Doubles LoadDoubles(const double* x) { return Load(x); }
SY_INLINE Doubles LoadDoubles(const float* x) {
  typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));
  return __builtin_convertvector(LoadBytes<HalfFloats>(x), Doubles);
}

template <class Acc>
SY_INLINE double Squares(const Acc* x, int64_t n) {
  constexpr int kN = Lanes<double>::kCount;
  Doubles sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kN <= n; i += 4 * kN) {
    for (int j = 0; j < 4; ++j) {
      const Doubles v = LoadDoubles(x + i + kN * j);
      sums[j] = Fma(v, v, sums[j]);
    }
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

}  // namespace

void AdamWRange(const AdamWArgs& a, int64_t begin, int64_t end) {
  VisitAcc(a.dtype, [&]<class Acc>() { Step<Acc>(a, begin, end); });
}

double SumOfSquaresOf(uint8_t dtype, const void* x, int64_t n) {
  return dtype == 1 ? Squares(static_cast<const double*>(x), n) : Squares(static_cast<const float*>(x), n);
}

}  // namespace switchyard::ops::SY_KERNEL_NS
