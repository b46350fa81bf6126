// Lanes of AccDType for the kernels of this room: as many as a register of the instruction set holds, which are 16 of
// float with AVX-512, 8 with AVX2, else 4, and half as many of double.  (A vector of more than a register is kept in
// memory by g++, which costs more than the arithmetic.)
//
// A kernel is written once with these types and compiled once per instruction set (ops.cmake); in each, the order of
// every sum and the places of fmas are fixed, and so are a row's bits for a build and a machine.  They differ between
// instruction sets: by the lanes of sums, and the baseline has no fma.
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

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kFloats = kVectorBytes / 4;  // lanes of float

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));

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
  using Vec = Floats;
  static constexpr int kCount = kFloats;
};
template <>
struct Lanes<double> {
  using Acc = double;
  using Vec = Doubles;
  static constexpr int kCount = kVectorBytes / 8;
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

SY_INLINE Floats Splat(float value) { return value - Floats{}; }
SY_INLINE Doubles Splat(double value) { return value - Doubles{}; }

SY_INLINE Floats Fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

SY_INLINE Doubles Fma(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

SY_INLINE Floats Sqrt(Floats x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < kFloats; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
SY_INLINE Doubles Sqrt(Doubles x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(x);
#else
  for (int i = 0; i < kVectorBytes / 8; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// The larger of each lane; if one is NaN, b.
template <class Vec>
SY_INLINE Vec Max(Vec a, Vec b) {
  return a > b ? a : b;
}

// The smaller of each lane; if one is NaN, b.
template <class Vec>
SY_INLINE Vec Min(Vec a, Vec b) {
  return a < b ? a : b;
}

// bfloat16 rounded to nearest even, in the upper half of each lane; NaN stays a (quiet) NaN.
SY_INLINE Words RoundToBf16(Floats x) {
  const Words u = reinterpret_cast<Words>(x);
  const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  const Words quiet = (u | 0x400000u) & 0xffff0000u;
  return x != x ? quiet : rounded;
}

SY_INLINE Floats Load(const float* from) { return LoadBytes<Floats>(from); }
SY_INLINE Doubles Load(const double* from) { return LoadBytes<Doubles>(from); }
SY_INLINE Floats Load(const Bf16Bits* from) {
#if defined(__AVX512F__)  // g++ widens the halves one by one
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
#else
  return reinterpret_cast<Floats>(__builtin_convertvector(LoadBytes<HalfWords>(from), Words) << 16);
#endif
}
SY_INLINE Floats Load(const Fp16Bits* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  _Float16 halves[kFloats];
  __builtin_memcpy(halves, from, sizeof(halves));
  Floats out;
  for (int i = 0; i < kFloats; ++i) out[i] = static_cast<float>(halves[i]);
  return out;
#endif
}

SY_INLINE void Store(Floats x, float* to) { __builtin_memcpy(to, &x, sizeof(x)); }
SY_INLINE void Store(Doubles x, double* to) { __builtin_memcpy(to, &x, sizeof(x)); }
SY_INLINE void Store(Floats x, Bf16Bits* to) {
  const HalfWords bits = __builtin_convertvector(RoundToBf16(x) >> 16, HalfWords);
  __builtin_memcpy(to, &bits, sizeof(bits));
}
SY_INLINE void Store(Floats x, Fp16Bits* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  _Float16 halves[kFloats];
  for (int i = 0; i < kFloats; ++i) halves[i] = static_cast<_Float16>(x[i]);
  __builtin_memcpy(to, halves, sizeof(halves));
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
    Elem stored[kFloats];
    Store(x, stored);
    return Load(stored);
  }
}

// Sums of all lanes by halving: lane i + lane i + n/2, and so on down to one.
SY_INLINE float SumLanes(Floats x) {
  typedef float Quarter __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const Quarter q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const Quarter q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
#else
  const Quarter q = x;
#endif
  return (q[0] + q[2]) + (q[1] + q[3]);
}
SY_INLINE double SumLanes(Doubles x) {
  double sums[kVectorBytes / 8];
  Store(x, sums);
  for (int n = kVectorBytes / 16; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

// sums[i] = SumLanes(x[i]) of kSumsAtOnce vectors, the same bits: they are halved side by side.
#if defined(__AVX512F__)
constexpr int kSumsAtOnce = 16;
SY_INLINE void SumLanesOfEach(const Floats* x, float* sums) {
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
}
#elif defined(__AVX2__)
constexpr int kSumsAtOnce = 8;
SY_INLINE void SumLanesOfEach(const Floats* x, float* sums) {
  __m256 a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_add_ps(_mm256_permute2f128_ps(x[i], x[i + 4], 0x20), _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
  }
  for (int i = 0; i < 2; ++i) {
    const __m256d low = _mm256_castps_pd(a[i]), high = _mm256_castps_pd(a[i + 2]);
    b[i] =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(low, high)), _mm256_castpd_ps(_mm256_unpackhi_pd(low, high)));
  }
  // Halves now stand for vectors 0 and 4 on, in each 0, 2, 1, 3.
  const __m256 c = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
  _mm256_storeu_ps(sums, _mm256_permute_ps(c, 0xd8));
}
#else
constexpr int kSumsAtOnce = 8;
SY_INLINE void SumLanesOfEach(const Floats* x, float* sums) {
  for (int i = 0; i < kSumsAtOnce; ++i) sums[i] = SumLanes(x[i]);
}
#endif
SY_INLINE void SumLanesOfEach(const Doubles* x, double* sums) {
  for (int i = 0; i < kSumsAtOnce; ++i) sums[i] = SumLanes(x[i]);
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
SY_INLINE Floats Exp(Floats x) {
  const Floats magic = Splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer, which is then in the low bits
  const Floats shifted = Fma(x, Splat(1.44269504088896341f), magic);
  const Floats n = shifted - magic;
  Floats r = Fma(n, Splat(-0.693359375f), x);
  r = Fma(n, Splat(2.12194440e-4f), r);
  Floats q = Splat(1.9875691500e-4f);
  q = Fma(q, r, Splat(1.3981999507e-3f));
  q = Fma(q, r, Splat(8.3334519073e-3f));
  q = Fma(q, r, Splat(4.1665795894e-2f));
  q = Fma(q, r, Splat(1.6666665459e-1f));
  q = Fma(q, r, Splat(5.0000001201e-1f));
  const Floats p = Fma(q, r * r, r) + 1.0f;
  const Words bits = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 23);
  Floats y = reinterpret_cast<Floats>(bits);
  y = x < -87.336544f ? Floats{} : y;
  y = x > 88.7228f ? Splat(__builtin_inff()) : y;
  return x != x ? x : y;
}
SY_INLINE Doubles Exp(Doubles x) {
  Doubles y;
  for (int i = 0; i < kVectorBytes / 8; ++i) y[i] = __builtin_exp(x[i]);
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
