// Products with weights of 8, 6 and 4 bits (weight_format.h): x is quantized when its block is packed, sums of a group
// are integers.  Compiled once per instruction set: with AVX2 by products of 16 bits, and with SY_INT_DOT by sums of
// four products of bytes, which AVX-VNNI has (vpdpbusd; that of AVX-512: gemm_avx512_vnni_cpu.cc).  Sums are exact, so
// all have the same bits.
#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_int_rows.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int kIntRows = 4;
#if defined(__AVX2__) && !defined(SY_INT_DOT)
constexpr bool kSumsOf16Bits = true;
#else
[[maybe_unused]] constexpr bool kSumsOf16Bits = false;
#endif

#if defined(__AVX2__)

constexpr int kIntQuads = kIntGroup / 4;
constexpr int kIntAhead = 2048;  // bytes that are prefetched ahead of the loads

SY_INLINE __m256i LoadInts(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
// 8 columns' scales.
template <GemmScales kScales>
SY_INLINE __m256 LoadScales(const char* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (IsFp16(kScales)) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
#if defined(SY_INT_DOT)
// sum[i] + Σ over the four bytes of lane i of w (unsigned) · x (signed).
SY_INLINE __m256i AddDot(__m256i sum, __m256i w, __m256i x) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, w, x);
#else  // what a test runs where no processor has it
  const __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(w, 8);
  const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
  return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd)));
#endif
}
#endif
// Keeps sums in registers: without it g++ computes the products of all rows before it adds them, and spills.
template <int NV>
SY_INLINE void Pin(__m256i (&sums)[NV]) {
#pragma GCC unroll 4
  for (int n = 0; n < NV; ++n) asm volatile("" : "+x"(sums[n]));
}
// 4 bytes of x: a quad of int8, or half of one of int16.
SY_INLINE int32_t QuadAt(const char* from) { return LoadBytes<int32_t>(from); }

// 8 columns of c[r, ·] += (sums · scale of the weights + Σ x · least) · scale of x; or, without least values, (sums -
// zero · Σ x) · scale of the weights · scale of x.  Sums and zero · Σ x are whole and below 2^24.
// half: which half's scales and sums; 0 where a group has one scale.
template <int MR, int NV, int kZero, GemmScales kScales>
SY_INLINE void AddGroups(const __m256i (&sums)[MR][NV], const char* rows, const char* b, int v, float* c,
                         int half = 0) {
  __m256 scales[NV], least[NV];
#pragma GCC unroll 4
  for (int n = 0; n < NV; ++n) {
    scales[n] = LoadScales<kScales>(b + half * kGemmScaleBytes + (v + n) * 16);
    if constexpr (kScales == GemmScales::kFp16AndLeast)
      least[n] = LoadScales<kScales>(b + kGemmScaleBytes + (v + n) * 16);
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const auto* x = reinterpret_cast<const float*>(rows + r * static_cast<int>(sizeof(RowGroup)));
    const __m256 x_scale = _mm256_broadcast_ss(x);
    __m256 x_sum = _mm256_broadcast_ss(x + 1);
    if constexpr (kScales == GemmScales::kFp16OfHalves) {
      const __m256 first = _mm256_broadcast_ss(x + 2);
      x_sum = half == 0 ? first : _mm256_sub_ps(x_sum, first);
    }
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
      float* const to = c + r * kGemmPanel + (v + n) * 8;
      const __m256 whole = _mm256_cvtepi32_ps(sums[r][n]);
      __m256 sum;
      if constexpr (kScales == GemmScales::kFp16AndLeast) {
        const __m256 value = _mm256_fmadd_ps(whole, scales[n], _mm256_mul_ps(least[n], x_sum));
        sum = _mm256_fmadd_ps(value, x_scale, _mm256_loadu_ps(to));
      } else {
        const __m256 value = _mm256_fnmadd_ps(_mm256_set1_ps(kZero), x_sum, whole);
        sum = _mm256_fmadd_ps(value, _mm256_mul_ps(scales[n], x_scale), _mm256_loadu_ps(to));
      }
      _mm256_storeu_ps(to, sum);
    }
  }
}

// 32 numbers of 4 bits as bytes: those in the lower halves, or in the upper ones.
template <GemmScales kScales>
SY_INLINE __m256i HalvesOf(__m256i both) {
  const __m256i halves = _mm256_and_si256(both, _mm256_set1_epi8(15));
  if constexpr (!IsFp4(kScales)) return halves;
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kFp4Numbers));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), halves);
}

// Vectors [v, v + NV) of 8 columns, of one group.  Sums of 8 k of numbers up to 24 fit 16 bits twice, not four times.
template <int MR, int NV, GemmScales kScales>
SY_INLINE void Int4Group(const char* a, const char* b, int v, float* c) {
  [[maybe_unused]] const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[MR][NV] = {};
  // (Unrolled, g++ computes all products before it adds any, and keeps them in memory.)
#pragma GCC unroll 1
  for (int p = 0; p < 4; ++p) {
    __m256i low[NV], high[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
      const __m256i both = LoadInts(b + GemmNumbersOffset(kScales) + (p * 4 + v + n) * 32);
      low[n] = HalvesOf<kScales>(both);
      high[n] = HalvesOf<kScales>(_mm256_srli_epi16(both, 4));
    }
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256i x0 = _mm256_set1_epi32(QuadAt(a + ((2 * p) * MR + r) * 4));
      const __m256i x1 = _mm256_set1_epi32(QuadAt(a + ((2 * p + 1) * MR + r) * 4));
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) {
#if defined(SY_INT_DOT)
        sum[r][n] = AddDot(AddDot(sum[r][n], low[n], x0), high[n], x1);
#else
        const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low[n], x0), _mm256_maddubs_epi16(high[n], x1));
        if constexpr (IsFp4(kScales)) {
          sum[r][n] = _mm256_add_epi32(sum[r][n], _mm256_madd_epi16(pairs, ones));
        } else {
          sum[r][n] = _mm256_add_epi16(sum[r][n], pairs);
        }
#endif
      }
      Pin(sum[r]);
    }
  }
  if constexpr (kSumsOf16Bits && !IsFp4(kScales)) {
#pragma GCC unroll 16
    for (int i = 0; i < MR * NV; ++i) sum[i / NV][i % NV] = _mm256_madd_epi16(sum[i / NV][i % NV], ones);
  }
  AddGroups<MR, NV, ZeroOf(4, kScales), kScales>(sum, a + MR * kIntGroup, b, v, c);
}

// The upper 2 bits of quad j of a half, where they stand in numbers of 6 bits.
template <int j>
SY_INLINE __m256i UpperBits(__m256i of_half) {
  const __m256i mask = _mm256_set1_epi8(0x30);
  if constexpr (j < 2) return _mm256_and_si256(_mm256_slli_epi16(of_half, 4 - 2 * j), mask);
  return _mm256_and_si256(_mm256_srli_epi16(of_half, j < 2 ? 0 : 2 * j - 4), mask);
}

// The products of two quads of a half, 2 kPair and the next, added to its sums.  Sums of two products of numbers up to
// 63 fit 16 bits.
template <int MR, int NV, int kPair>
SY_INLINE void AddPairOfQuads(const char* a, const char* lower, const __m256i (&upper)[NV], __m256i (&sum)[MR][NV]) {
  __m256i first[NV], second[NV];
#pragma GCC unroll 4
  for (int n = 0; n < NV; ++n) {
    const __m256i both = LoadInts(lower + n * 32), mask = _mm256_set1_epi8(15);
    first[n] = _mm256_or_si256(_mm256_and_si256(both, mask), UpperBits<2 * kPair>(upper[n]));
    second[n] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), UpperBits<2 * kPair + 1>(upper[n]));
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i x0 = _mm256_set1_epi32(QuadAt(a + (2 * kPair * MR + r) * 4));
    const __m256i x1 = _mm256_set1_epi32(QuadAt(a + ((2 * kPair + 1) * MR + r) * 4));
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
#if defined(SY_INT_DOT)
      sum[r][n] = AddDot(AddDot(sum[r][n], first[n], x0), second[n], x1);
#else
      const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(first[n], x0), _mm256_maddubs_epi16(second[n], x1));
      sum[r][n] = _mm256_add_epi32(sum[r][n], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
    Pin(sum[r]);
  }
}

template <int MR, int NV, GemmScales kScales>
SY_INLINE void Int6Group(const char* a, const char* b, int v, float* c) {
  const char* const lower = b + GemmNumbersOffset(kScales);
#pragma GCC unroll 1
  for (int half = 0; half < 2; ++half) {
    __m256i sum[MR][NV] = {}, upper[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) upper[n] = LoadInts(lower + kGemmUpperOffset + (half * 4 + v + n) * 32);
    AddPairOfQuads<MR, NV, 0>(a + half * 16 * MR, lower + (half * 8 + v) * 32, upper, sum);
    AddPairOfQuads<MR, NV, 1>(a + half * 16 * MR, lower + (half * 8 + 4 + v) * 32, upper, sum);
    AddGroups<MR, NV, ZeroOf(6, kScales), kScales>(sum, a + MR * kIntGroup, b, v, c, half);
  }
}

#if defined(SY_INT_DOT)
template <int MR, int NV, GemmScales kScales>
SY_INLINE void Int8Group(const char* a, const char* b, int v, float* c) {
  __m256i sum[MR][NV] = {};
#pragma GCC unroll 1
  for (int quad = 0; quad < kIntQuads; ++quad) {
    __m256i w[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) w[n] = LoadInts(b + GemmNumbersOffset(kScales) + (quad * 4 + v + n) * 32);
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256i x = _mm256_set1_epi32(QuadAt(a + (quad * MR + r) * 4));
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) sum[r][n] = AddDot(sum[r][n], w[n], x);
      Pin(sum[r]);
    }
  }
  AddGroups<MR, NV, ZeroOf(8, kScales), kScales>(sum, a + MR * kIntGroup, b, v, c);
}
#else
template <int MR, int NV, GemmScales kScales>
SY_INLINE void Int8Group(const char* a, const char* b, int v, float* c) {
  __m256i sum[MR][NV] = {};
#pragma GCC unroll 1
  for (int quad = 0; quad < kIntQuads; ++quad) {
    __m256i even[NV], odd[NV];
#pragma GCC unroll 4
    for (int n = 0; n < NV; ++n) {
      const __m256i w = LoadInts(b + GemmNumbersOffset(kScales) + (quad * 4 + v + n) * 32);
      even[n] = _mm256_and_si256(w, _mm256_set1_epi16(255));
      odd[n] = _mm256_srli_epi16(w, 8);
    }
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const char* x = a + (quad * MR + r) * 8;
      const __m256i x0 = _mm256_set1_epi32(QuadAt(x)), x1 = _mm256_set1_epi32(QuadAt(x + 4));
#pragma GCC unroll 4
      for (int n = 0; n < NV; ++n) {
        sum[r][n] = _mm256_add_epi32(sum[r][n], _mm256_madd_epi16(even[n], x0));
        sum[r][n] = _mm256_add_epi32(sum[r][n], _mm256_madd_epi16(odd[n], x1));
      }
      Pin(sum[r]);
    }
  }
  AddGroups<MR, NV, ZeroOf(8, kScales), kScales>(sum, a + 2 * MR * kIntGroup, b, v, c);
}
#endif

template <int kBits, GemmScales kScales, int MR>
void MultiplyInt(const GemmBlockArgs& args) {
  constexpr int kBlockBytes = GemmQuantBlockBytes(kBits, kScales);
  constexpr int kRowBytes =
      static_cast<int>(sizeof(typename NumberOf<kBits>::Type)) * kIntGroup + static_cast<int>(sizeof(RowGroup));
  constexpr int NV = (IsFp4(kScales) || kBits == 6) && MR > 2 ? 1 : MR == 1 || (kBits == 8 && MR == 2) ? 4 : 2;
  const char* a = static_cast<const char*>(args.a);
  const char* b = static_cast<const char*>(args.b);
  float* c = static_cast<float*>(args.c);
  for (int i = 0; i < MR * kGemmPanel; i += 8) _mm256_storeu_ps(c + i, _mm256_setzero_ps());
  for (int64_t k = 0; k < args.padded_k; k += kIntGroup, a += MR * kRowBytes, b += kBlockBytes) {
#pragma GCC unroll 32
    for (int line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(b + kIntAhead + line);
    asm volatile("" : : : "memory");  // else g++ keeps c in memory of its own beside args.c
#pragma GCC unroll 4
    for (int v = 0; v < 4; v += NV) {
      if constexpr (kBits == 4) {
        Int4Group<MR, NV, kScales>(a, b, v, c);
      } else if constexpr (kBits == 6) {
        Int6Group<MR, NV, kScales>(a, b, v, c);
      } else {
        Int8Group<MR, NV, kScales>(a, b, v, c);
      }
    }
  }
}

#else

// The panel's number of a column for k of a group (quantize_panel.h).
template <int kBits, GemmScales kScales>
SY_INLINE int32_t IntWeightAt(const char* b, int column, int k) {
  const char* numbers = b + GemmNumbersOffset(kScales);
  if constexpr (kBits == 8) return static_cast<uint8_t>(numbers[(k / 4 * kGemmPanel + column) * 4 + k % 4]);
  const uint32_t both = static_cast<uint8_t>(numbers[(k / 8 * kGemmPanel + column) * 4 + k % 4]);
  const uint32_t number = both >> (k % 8 / 4 * 4) & 15u;
  if constexpr (kBits == 6) {
    const uint32_t upper = static_cast<uint8_t>(numbers[kGemmUpperOffset + (k / 16 * kGemmPanel + column) * 4 + k % 4]);
    return static_cast<int32_t>(number | (upper >> (k % 16 / 4 * 2) & 3u) << 4);
  }
  return static_cast<int32_t>(IsFp4(kScales) ? kFp4Numbers[number] : number);
}

template <GemmScales kScales>
SY_INLINE float ScaleAt(const char* b, int column) {
  const auto bits = LoadBytes<uint16_t>(b + column * 2);
  if constexpr (IsFp16(kScales)) return static_cast<float>(LoadBytes<_Float16>(&bits));
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return LoadBytes<float>(&wide);
}

// The plain way, for any processor.
template <int kBits, GemmScales kScales, int MR>
void MultiplyInt(const GemmBlockArgs& args) {
  constexpr int kBlockBytes = GemmQuantBlockBytes(kBits, kScales);
  using Number = typename NumberOf<kBits>::Type;
  constexpr int kRowBytes = kIntGroup * static_cast<int>(sizeof(Number)) + static_cast<int>(sizeof(RowGroup));
  const char* a = static_cast<const char*>(args.a);
  const char* b = static_cast<const char*>(args.b);
  float* c = static_cast<float*>(args.c);
  for (int i = 0; i < MR * kGemmPanel; ++i) c[i] = 0;
  for (int64_t k = 0; k < args.padded_k; k += kIntGroup, a += MR * kRowBytes, b += kBlockBytes) {
    for (int r = 0; r < MR; ++r) {
      const auto x = LoadBytes<RowGroup>(a + MR * kIntGroup * sizeof(Number) + r * sizeof(RowGroup));
      for (int column = 0; column < kGemmPanel; ++column) {
        int32_t sum = 0, first = 0;
        for (int i = 0; i < kIntGroup; ++i) {
          const auto number = LoadBytes<Number>(a + ((i / 4 * MR + r) * 4 + InQuad<Number>(i % 4)) * sizeof(Number));
          if (i == kIntGroup / 2) first = sum;
          sum += number * IntWeightAt<kBits, kScales>(b, column, i);
        }
        const float scale = ScaleAt<kScales>(b, column);
        float& to = c[r * kGemmPanel + column];
        constexpr float kZero = ZeroOf(kBits, kScales);
        if constexpr (kScales == GemmScales::kFp16AndLeast) {
          const float least = ScaleAt<kScales>(b + kGemmScaleBytes, column);
          to += (static_cast<float>(sum) * scale + x.sum * least) * x.scale;
        } else if constexpr (kScales == GemmScales::kFp16OfHalves) {
          const float second = ScaleAt<kScales>(b + kGemmScaleBytes, column);
          to += (static_cast<float>(first) - kZero * x.first) * (scale * x.scale);
          to += (static_cast<float>(sum - first) - kZero * (x.sum - x.first)) * (second * x.scale);
        } else {
          to += (static_cast<float>(sum) - kZero * x.sum) * (scale * x.scale);
        }
      }
    }
  }
}

#endif

}  // namespace
}  // namespace switchyard::ops::SY_KERNEL_NS

#include "workers/ops/gemm/kernels/gemm_int_table.h"
