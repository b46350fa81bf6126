// Lanes of AccDType for the kernels of this room: 16 of float, 8 of double, whatever the instruction set.
//
// A kernel is written once with these types and compiled once per instruction set (ops.cmake); the number of lanes, the
// order of every sum and the places of fmas are the same in each, so a row's bits are fixed for a build and a machine.
// (They may differ between instruction sets: the baseline has no fma.)
//
// Only for *_cpu.cc files.  Everything is in an anonymous namespace and no header with inline functions of its own is
// included: code compiled with wide instructions must never become the linker's pick for the rest of the program.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace switchyard::ops {
namespace {

#define SY_INLINE inline __attribute__((always_inline))

typedef float F32x16 __attribute__((vector_size(64)));
typedef double F64x8 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));

// Elements as stored.  Same bytes as Bf16 and Fp16 of workers/tensor/dtype.h, without their inline functions.
struct Bf16Bits {
  uint16_t bits;
};
struct Fp16Bits {
  uint16_t bits;
};

template <class Elem>
struct Lanes {
  using Acc = float;
  using Vec = F32x16;
  static constexpr int kCount = 16;
};
template <>
struct Lanes<double> {
  using Acc = double;
  using Vec = F64x8;
  static constexpr int kCount = 8;
};
template <class Elem>
using AccT = typename Lanes<Elem>::Acc;
template <class Elem>
using VecT = typename Lanes<Elem>::Vec;

template <class Wide, class Narrow>
SY_INLINE Wide LoadBytes(const Narrow* from) {
  Wide out;
  __builtin_memcpy(&out, from, sizeof(Wide));
  return out;
}

SY_INLINE F32x16 Splat(float value) { return value - F32x16{}; }
SY_INLINE F64x8 Splat(double value) { return value - F64x8{}; }

SY_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  F32x16 out;
  for (int i = 0; i < 2; ++i) {
    const __m256 r = _mm256_fmadd_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(&a) + 8 * i),
                                     _mm256_loadu_ps(reinterpret_cast<const float*>(&b) + 8 * i),
                                     _mm256_loadu_ps(reinterpret_cast<const float*>(&c) + 8 * i));
    __builtin_memcpy(reinterpret_cast<float*>(&out) + 8 * i, &r, 32);
  }
  return out;
#else
  return a * b + c;
#endif
}

SY_INLINE F64x8 Fma(F64x8 a, F64x8 b, F64x8 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  F64x8 out;
  for (int i = 0; i < 2; ++i) {
    const __m256d r = _mm256_fmadd_pd(_mm256_loadu_pd(reinterpret_cast<const double*>(&a) + 4 * i),
                                      _mm256_loadu_pd(reinterpret_cast<const double*>(&b) + 4 * i),
                                      _mm256_loadu_pd(reinterpret_cast<const double*>(&c) + 4 * i));
    __builtin_memcpy(reinterpret_cast<double*>(&out) + 4 * i, &r, 32);
  }
  return out;
#else
  return a * b + c;
#endif
}

// The larger of each lane; if one is NaN, b.
template <class Vec>
SY_INLINE Vec Max(Vec a, Vec b) {
  return a > b ? a : b;
}

// bfloat16 rounded to nearest even, in the upper half of each lane; NaN stays a (quiet) NaN.
SY_INLINE U32x16 RoundToBf16(F32x16 x) {
  const U32x16 u = reinterpret_cast<U32x16>(x);
  const U32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  const U32x16 quiet = (u | 0x400000u) & 0xffff0000u;
  return x != x ? quiet : rounded;
}

SY_INLINE F32x16 Load(const float* from) { return LoadBytes<F32x16>(from); }
SY_INLINE F64x8 Load(const double* from) { return LoadBytes<F64x8>(from); }
SY_INLINE F32x16 Load(const Bf16Bits* from) {
  return reinterpret_cast<F32x16>(__builtin_convertvector(LoadBytes<U16x16>(from), U32x16) << 16);
}
SY_INLINE F32x16 Load(const Fp16Bits* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  _Float16 halves[16];
  __builtin_memcpy(halves, from, 32);
  F32x16 out;
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(halves[i]);
  return out;
#endif
}

SY_INLINE void Store(F32x16 x, float* to) { __builtin_memcpy(to, &x, 64); }
SY_INLINE void Store(F64x8 x, double* to) { __builtin_memcpy(to, &x, 64); }
SY_INLINE void Store(F32x16 x, Bf16Bits* to) {
  const U16x16 bits = __builtin_convertvector(RoundToBf16(x) >> 16, U16x16);
  __builtin_memcpy(to, &bits, 32);
}
SY_INLINE void Store(F32x16 x, Fp16Bits* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  _Float16 halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<_Float16>(x[i]);
  __builtin_memcpy(to, halves, 32);
#endif
}

// The first n lanes, 0 < n <= kCount; the others read as zero and are not written.
template <class Elem>
SY_INLINE VecT<Elem> LoadPart(const Elem* from, int64_t n) {
  if (n == Lanes<Elem>::kCount) return Load(from);
  Elem padded[Lanes<Elem>::kCount] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = from[i];
  return Load(padded);
}
template <class Elem>
SY_INLINE void StorePart(VecT<Elem> x, Elem* to, int64_t n) {
  if (n == Lanes<Elem>::kCount) return Store(x, to);
  Elem padded[Lanes<Elem>::kCount];
  Store(x, padded);
  for (int64_t i = 0; i < n; ++i) to[i] = padded[i];
}

// The same, but lanes beyond n are -Inf.
template <class Acc>
SY_INLINE VecT<Acc> LoadOrLowest(const Acc* from, int64_t n) {
  constexpr int kN = Lanes<Acc>::kCount;
  if (n == kN) return Load(from);
  Acc padded[kN];
  for (int64_t i = 0; i < kN; ++i) padded[i] = i < n ? from[i] : -static_cast<Acc>(__builtin_inf());
  return Load(padded);
}

// The value of x after it is stored as Elem and loaded again.
template <class Elem>
SY_INLINE VecT<Elem> Round(VecT<Elem> x) {
  if constexpr (sizeof(Elem) >= 4) {
    return x;
  } else {
    Elem stored[16];
    Store(x, stored);
    return Load(stored);
  }
}

// Sums of all lanes by halving: lane i + lane i + n/2, and so on down to one.
SY_INLINE float SumLanes(F32x16 x) {
  typedef float F32x8 __attribute__((vector_size(32)));
  typedef float F32x4 __attribute__((vector_size(16)));
  const float* lane = reinterpret_cast<const float*>(&x);
  const F32x8 a = LoadBytes<F32x8>(lane) + LoadBytes<F32x8>(lane + 8);
  const float* half = reinterpret_cast<const float*>(&a);
  const F32x4 b = LoadBytes<F32x4>(half) + LoadBytes<F32x4>(half + 4);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
SY_INLINE double SumLanes(F64x8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

// sums[i] = SumLanes(x[i]) of 16 vectors, the same bits: with AVX-512 all 16 are halved side by side.
SY_INLINE void SumLanesOfEach(const F32x16* x, float* sums) {
#if defined(__AVX512F__)
  __m512 a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
  }
  for (int i = 0; i < 2; ++i) {
    const __m512d low = _mm512_castps_pd(b[i]), high = _mm512_castps_pd(b[i + 2]);
    c[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  const __m512 d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
  // Quarters now stand for vectors 0, 8, 4, 12 and on, in each 0, 2, 1, 3.
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  _mm512_storeu_ps(sums, _mm512_permutexvar_ps(order, d));
#else
  for (int i = 0; i < 16; ++i) sums[i] = SumLanes(x[i]);
#endif
}
SY_INLINE void SumLanesOfEach(const F64x8* x, double* sums) {
  for (int i = 0; i < 16; ++i) sums[i] = SumLanes(x[i]);
}

SY_INLINE float Sqrt(float x) { return __builtin_sqrtf(x); }
SY_INLINE double Sqrt(double x) { return __builtin_sqrt(x); }

template <class Vec>
SY_INLINE auto MaxLanes(Vec x) {
  auto best = x[0];
  for (unsigned i = 1; i < sizeof(Vec) / sizeof(x[0]); ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// e^x within 2 ulp; exactly 1 at 0 and 0 at -Inf; results below the smallest normal number are 0; NaN stays NaN.
SY_INLINE F32x16 Exp(F32x16 x) {
  const F32x16 magic = Splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer, which is then in the low bits
  const F32x16 shifted = Fma(x, Splat(1.44269504088896341f), magic);
  const F32x16 n = shifted - magic;
  F32x16 r = Fma(n, Splat(-0.693359375f), x);
  r = Fma(n, Splat(2.12194440e-4f), r);
  F32x16 q = Splat(1.9875691500e-4f);
  q = Fma(q, r, Splat(1.3981999507e-3f));
  q = Fma(q, r, Splat(8.3334519073e-3f));
  q = Fma(q, r, Splat(4.1665795894e-2f));
  q = Fma(q, r, Splat(1.6666665459e-1f));
  q = Fma(q, r, Splat(5.0000001201e-1f));
  const F32x16 p = Fma(q, r * r, r) + 1.0f;
  const U32x16 bits = reinterpret_cast<U32x16>(p) + (reinterpret_cast<U32x16>(shifted) << 23);
  F32x16 y = reinterpret_cast<F32x16>(bits);
  y = x < -87.336544f ? F32x16{} : y;
  y = x > 88.7228f ? Splat(__builtin_inff()) : y;
  return x != x ? x : y;
}
SY_INLINE F64x8 Exp(F64x8 x) {
  F64x8 y;
  for (int i = 0; i < 8; ++i) y[i] = __builtin_exp(x[i]);
  return y;
}

// Calls fn.template operator()<Elem>() for DType's first four values: fp32, fp64, bf16, fp16 (checked in kernels.cc).
template <class Fn>
SY_INLINE void VisitElem(uint8_t dtype, Fn&& fn) {
  switch (dtype) {
    case 0:
      return fn.template operator()<float>();
    case 1:
      return fn.template operator()<double>();
    case 2:
      return fn.template operator()<Bf16Bits>();
    default:
      return fn.template operator()<Fp16Bits>();
  }
}

// Calls fn.template operator()<Acc>() for fp32 or fp64, the values of AccDType.
template <class Fn>
SY_INLINE void VisitAcc(uint8_t dtype, Fn&& fn) {
  if (dtype == 1) return fn.template operator()<double>();
  fn.template operator()<float>();
}

}  // namespace
}  // namespace switchyard::ops
