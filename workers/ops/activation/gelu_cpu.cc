// gelu and its derivative, lane by lane.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

inline constexpr double kGeluRoot = 0.79788456080286535588;  // √(2/π)
inline constexpr double kGeluCube = 0.044715;

// x clamped for u: beyond ±30 the sigmoid is 0 or 1 in every dtype, and nothing overflows before.
template <class Vec>
SY_INLINE Vec GeluNear(Vec x) {
  using Acc = decltype(x[0] + 0);
  const Vec limit = Splat(static_cast<Acc>(30));
  x = x > limit ? limit : x;
  return x < -limit ? -limit : x;
}

// s(2u).
template <class Vec>
SY_INLINE Vec GeluGate(Vec x) {
  using Acc = decltype(x[0] + 0);
  const Vec c = GeluNear(x);
  const Vec u = c * (c * c * static_cast<Acc>(kGeluCube) + Acc{1}) * static_cast<Acc>(kGeluRoot);
  return Acc{1} / (Exp(u * Acc{-2}) + Acc{1});
}

SY_INLINE float HalfErfc(float x) { return 0.5f * __builtin_erfcf(x * -0.70710678118654752440f); }
SY_INLINE double HalfErfc(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752440); }

// Φ(x), without cancellation on the left.
template <class Vec>
SY_INLINE Vec NormalBelow(Vec x) {
  Vec y;
  for (unsigned i = 0; i < sizeof(Vec) / sizeof(x[0]); ++i) y[i] = HalfErfc(x[i]);
  return y;
}

template <class Vec>
SY_INLINE Vec GeluOf(Vec x, bool tanh) {
  return x * (tanh ? GeluGate(x) : NormalBelow(x));
}

template <class Vec>
SY_INLINE Vec GeluSlope(Vec x, bool tanh) {
  using Acc = decltype(x[0] + 0);
  if (!tanh) {
    const Vec density = Exp(x * x * Acc{-0.5}) * static_cast<Acc>(0.39894228040143267794);  // 1 / √(2π)
    return NormalBelow(x) + x * density;
  }
  const Vec s = GeluGate(x), c = GeluNear(x);
  const Vec du = (c * c * static_cast<Acc>(3 * kGeluCube) + Acc{1}) * static_cast<Acc>(2 * kGeluRoot);
  return s + c * (s * (Acc{1} - s)) * du;
}

}  // namespace

void GeluRows(const GeluArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t t = begin; t < end; ++t) {
      const Elem* x = RowAt<Elem>(a.x, t);
      Elem* y = RowAt<Elem>(a.y, t);
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        StorePart<Elem>(GeluOf(LoadPart(x + j, n), a.tanh), y + j, n);
      }
    }
  });
}

void GeluBackwardRows(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t t = begin; t < end; ++t) {
      const Elem *x = RowAt<Elem>(a.x, t), *dy = RowAt<Elem>(a.dy, t);
      Elem* dx = RowAt<Elem>(a.dx, t);
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        StorePart<Elem>(LoadPart(dy + j, n) * GeluSlope(LoadPart(x + j, n), a.tanh), dx + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
