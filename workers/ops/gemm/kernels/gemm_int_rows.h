// Rows of x quantized to 8 bits as A blocks, for products with weights of few bits (weight_format.h), and what the
// formats of those are to a kernel.  Part of gemm_int_cpu.cc and gemm_avx512_vnni_cpu.cc.
//
// An A block has for each group of 32 k: quads of k of every row (int8; without SY_INT_DOT for weights of 8 bits int16,
// because products of two full bytes do not fit the 16 bits of vpmaddubsw, and those of k 0 and 2 before 1 and 3, as a
// mask and a shift widen the weights), then of every row x's scale and the sums of its numbers, by which the weights'
// zero is subtracted.
#pragma once

#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int kIntGroup = kGemmQuantGroup;

constexpr bool IsFp16(GemmScales scales) { return scales != GemmScales::kBf16 && scales != GemmScales::kBf16OfFp4; }
constexpr bool IsFp4(GemmScales scales) { return scales == GemmScales::kBf16OfFp4; }
// The stored number that stands for 0.
constexpr int32_t ZeroOf(int bits, GemmScales scales) { return IsFp4(scales) ? 12 : 1 << (bits - 1); }
// Twice the values of fp4, and this zero.
alignas(16) constexpr uint8_t kFp4Numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// What follows the quads of a group in an A block.
struct RowGroup {
  float scale;
  float sum;    // of the numbers: a whole one
  float first;  // of those of the first half
};

// The number of an A block for weights of so many bits.
template <int kBits>
struct NumberOf {
  using Type = int8_t;
};
#if !defined(SY_INT_DOT)
template <>
struct NumberOf<8> {
  using Type = int16_t;
};
#endif

// Where the number for k of a quad stands in it.
template <class Number>
constexpr int InQuad(int k) {
  return sizeof(Number) == 1 ? k : k / 2 + k % 2 * 2;
}

// Rounded to nearest even.  REQUIRES: |x| < 2^22.
SY_INLINE Floats RoundToWhole(Floats x) {
  const Floats large = Splat(12582912.0F);  // 1.5 * 2^23
  return (x + large) - large;
}

// The largest lane, at least 0.
SY_INLINE float LargestLane(Floats x) {
#if defined(__AVX2__)
  __m256 parts[kVectorBytes / 32];
  __builtin_memcpy(parts, &x, sizeof(x));
  __m256 most = parts[0];
  if constexpr (kVectorBytes > 32) most = _mm256_max_ps(most, parts[kVectorBytes / 32 - 1]);
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
#else
  float largest = 0;
  for (int i = 0; i < kFloats; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
#endif
}

// A group of x, `count` of which exist, as whole numbers from -127 to 127.  NaN and Inf make the scale NaN; a group
// that is too small for 127 / x to be a number is zeros.
template <class Elem>
SY_INLINE RowGroup QuantizeGroup(const Elem* x, int64_t count, int32_t* numbers) {
  typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
  const bool whole_group = count >= kIntGroup;
  constexpr int kVectors = kIntGroup / kFloats;
  Floats values[kVectors];
  Floats most = {}, poison = {};
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const int64_t rest = count - i * kFloats;
    values[i] = whole_group ? Load(x + i * kFloats)
                : rest <= 0 ? Floats{}
                            : LoadPart(x + i * kFloats, rest < kFloats ? rest : kFloats);
    most = Max(Max(values[i], -values[i]), most);
    poison += values[i] * 0.0F;
  }
  const float largest = LargestLane(most);
  const float not_finite = SumLanes(poison);  // 0 or NaN
  if (!(largest >= 1e-30F && not_finite == 0)) {
    __builtin_memset(numbers, 0, kIntGroup * sizeof(*numbers));
    return {not_finite, 0, 0};
  }
  const float inverse = 127 / largest;
  Floats sums[2] = {};  // of whole numbers below 2^24: exact
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const Floats whole = RoundToWhole(values[i] * inverse);
    const Ints ints = __builtin_convertvector(whole, Ints);
    __builtin_memcpy(numbers + i * kFloats, &ints, sizeof(ints));
    sums[2 * i / kVectors] += whole;
  }
  const float first = SumLanes(sums[0]);
  return {largest / 127, first + SumLanes(sums[1]), first};
}

// A group's numbers as an A block has them.
SY_INLINE void Narrow(const int32_t* numbers, int8_t* line) {
#if defined(__AVX2__)
  const auto* from = reinterpret_cast<const __m256i*>(numbers);
  const __m256i lower = _mm256_packs_epi32(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
  const __m256i upper = _mm256_packs_epi32(_mm256_loadu_si256(from + 2), _mm256_loadu_si256(from + 3));
  const __m256i quads = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lower, upper), quads);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), packed);
#else
  for (int i = 0; i < kIntGroup; ++i) line[i] = static_cast<int8_t>(numbers[i]);
#endif
}
SY_INLINE void Narrow(const int32_t* numbers, int16_t* line) {
#if defined(__AVX2__)
  const auto* from = reinterpret_cast<const __m256i*>(numbers);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i packed = _mm256_packs_epi32(_mm256_loadu_si256(from + 2 * i), _mm256_loadu_si256(from + 2 * i + 1));
    const __m256i quads = _mm256_permute4x64_epi64(packed, 0xd8);
    const __m256i in_order = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(quads, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + 16 * i), in_order);
  }
#else
  for (int i = 0; i < kIntGroup; ++i) line[i / 4 * 4 + InQuad<int16_t>(i % 4)] = static_cast<int16_t>(numbers[i]);
#endif
}

#if defined(SY_INT_DOT) && defined(__AVX512VNNI__)
// A group's numbers as an A block has them: QuantizeGroup and Narrow in one, with the same bits (but for which NaN).
template <class Elem>
SY_INLINE RowGroup QuantizeLine(const Elem* x, int64_t count, int8_t* line) {
  const Floats first = count >= kFloats ? Load(x) : LoadPart(x, count);
  const int64_t rest = count - kFloats;
  const Floats second = rest >= kFloats ? Load(x + kFloats) : rest <= 0 ? Floats{} : LoadPart(x + kFloats, rest);
  // As whole numbers the bits of |x| are in the order of |x|, and those of Inf and NaN above all.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const uint32_t most =
      _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(first), magnitude),
                                               _mm512_and_si512(_mm512_castps_si512(second), magnitude)));
  const auto largest = LoadBytes<float>(&most);
  if (!(largest >= 1e-30F && largest <= 3.40282347e+38F)) {
    __builtin_memset(line, 0, kIntGroup);
    return {largest * 0, 0, 0};
  }
  const __m512 inverse = _mm512_set1_ps(127 / largest);
  const auto numbers = [inverse](Floats values) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_cvtepi32_epi8(_mm512_cvt_roundps_epi32(_mm512_mul_ps(values, inverse), kNearest));
  };
  const __m128i first_numbers = numbers(first), second_numbers = numbers(second);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(line), first_numbers);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(line) + 1, second_numbers);
  asm volatile("" : "+m"(*reinterpret_cast<int8_t(*)[kIntGroup]>(line)));  // else g++ extracts quads one by one
  const __m128i ones = _mm_set1_epi8(1), zeros = _mm_setzero_si128();
  const __m128i sums =
      _mm_hadd_epi32(_mm_dpbusd_epi32(zeros, ones, first_numbers), _mm_dpbusd_epi32(zeros, ones, second_numbers));
  const __m128 halves = _mm_cvtepi32_ps(_mm_hadd_epi32(sums, sums));
  return {largest / 127, halves[0] + halves[1], halves[0]};
}
#else
template <class Elem, class Number>
SY_INLINE RowGroup QuantizeLine(const Elem* x, int64_t count, Number* line) {
  int32_t numbers[kIntGroup];
  const RowGroup group = QuantizeGroup(x, count, numbers);
  Narrow(numbers, line);
  return group;
}
#endif

// [groups] of {[8][rows][4] Number, [rows] RowGroup}.
template <class Elem, class Number>
void PackInt(const GemmPackArgs& args) {
  const GemmPackArgs block = args;  // a copy, so that nothing written to its `a` can change it
  constexpr int64_t kNumberBytes = kIntGroup * sizeof(Number), kRowBytes = kNumberBytes + sizeof(RowGroup);
  constexpr int64_t kQuadBytes = 4 * sizeof(Number);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t row = block.row_idx != nullptr ? block.row_idx[r] : r;
    const Elem* x = static_cast<const Elem*>(block.x) + row * block.x_stride;
    char* to = static_cast<char*>(block.a);
    for (int64_t k = 0; k < block.padded_k; k += kIntGroup, to += block.rows * kRowBytes) {
      Number line[kIntGroup];
      const RowGroup group = QuantizeLine(x + k, block.k - k, line);
      char* quad = to + r * kQuadBytes;
#pragma GCC unroll 8
      for (int i = 0; i < kIntGroup; i += 4, quad += block.rows * kQuadBytes) {
        __builtin_memcpy(quad, line + i, kQuadBytes);
      }
      __builtin_memcpy(to + block.rows * kNumberBytes + r * static_cast<int64_t>(sizeof(group)), &group, sizeof(group));
    }
  }
}

}  // namespace
}  // namespace switchyard::ops::SY_KERNEL_NS
