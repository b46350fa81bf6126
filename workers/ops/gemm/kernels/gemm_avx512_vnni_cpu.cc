// Weights of 8, 6 and 4 bits with AVX-512 VNNI: vpdpbusd adds four products of bytes to each of 16 outputs.
// 12 rows × 2 vectors of sums.  The bits are those of gemm_int_cpu.cc: sums of a group are exact in either.
#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_int_rows.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int kIntRows = 12;
constexpr int kVectors = 2;  // of 16 columns
constexpr int kBytesOfVector = 64;
constexpr int kPairs = kIntGroup / 8;  // of quads of k in a group

SY_INLINE __m512i LoadInts(const char* from) { return _mm512_loadu_si512(from); }
SY_INLINE __m512i QuadOf(const char* row) { return _mm512_set1_epi32(LoadBytes<int32_t>(row)); }

// 16 columns' scales.
template <GemmScales kScales>
SY_INLINE __m512 LoadScales(const char* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if constexpr (IsFp16(kScales)) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 64 numbers of 4 bits as bytes: those in the lower halves.
template <GemmScales kScales>
SY_INLINE __m512i LowerHalves(__m512i both) {
  const __m512i halves = _mm512_and_si512(both, _mm512_set1_epi8(15));
  if constexpr (!IsFp4(kScales)) return halves;
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kFp4Numbers));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), halves);
}

// Bits 4 and 5 of `upper`'s bytes, the others of `lower`'s.
SY_INLINE __m512i WithUpperBits(__m512i lower, __m512i upper) {
  constexpr int kSelect = 0xca;  // of a mask's bits, those of the second operand where it is set
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), upper, lower, kSelect);
}

// The weights of a pair of quads of a group's numbers, 16 columns of them.
template <int kBits, GemmScales kScales>
SY_INLINE void LoadPair(const char* numbers, int pair, int vector, __m512i& first, __m512i& second) {
  numbers += vector * kBytesOfVector;
  if constexpr (kBits == 8) {
    first = LoadInts(numbers + 2 * pair * kVectors * kBytesOfVector);
    second = LoadInts(numbers + (2 * pair + 1) * kVectors * kBytesOfVector);
    return;
  }
  const __m512i both = LoadInts(numbers + pair * kVectors * kBytesOfVector);
  first = LowerHalves<kScales>(both);
  second = LowerHalves<kScales>(_mm512_srli_epi16(both, 4));
  if constexpr (kBits == 6) {
    // Those of quad j of a half: in bits 2 j and 2 j + 1, to be in 4 and 5.
    const __m512i of_half = LoadInts(numbers + kGemmUpperOffset + pair / 2 * kVectors * kBytesOfVector);
    const __m512i upper = _mm512_srl_epi16(of_half, _mm_cvtsi32_si128(pair % 2 * 4));
    first = WithUpperBits(first, _mm512_slli_epi16(upper, 4));
    second = WithUpperBits(second, _mm512_slli_epi16(upper, 2));
  }
}

// Asks for lines of a panel that are bytes ahead.  With several rows two threads read weights faster
// by both prefetches (28 to 31 GB/s where the nearer one alone gave 25 to 30); with one row by the nearer one alone.
template <int MR>
SY_INLINE void Prefetch(const char* at, int bytes) {
  constexpr bool kFar = MR > 1;
  constexpr int kNearBytes = kFar ? 1024 : 3072, kFarBytes = 8192;
#pragma GCC unroll 4
  for (int line = 0; line < bytes; line += 64) {
    _mm_prefetch(at + kNearBytes + line, _MM_HINT_T0);
    if constexpr (kFar) _mm_prefetch(at + kFarBytes + line, _MM_HINT_T1);
  }
}

// Keeps sums in registers, which g++ does not of itself.
SY_INLINE void Pin(__m512i (&sums)[kVectors]) { asm volatile("" : "+v"(sums[0]), "+v"(sums[1])); }

// sums += the products of pairs [begin, end) of quads.
template <int kBits, GemmScales kScales, int MR>
SY_INLINE void AddPairs(int begin, int end, const char* a, const char* numbers, __m512i (&sums)[MR][kVectors]) {
  constexpr int kPairBytes = 8 * kGemmPanel * kBits / 8;
#pragma GCC unroll 1
  for (int pair = begin; pair < end; ++pair) {
    asm volatile("" : "+r"(pair));  // else g++ writes two pairs out, and spills
    __m512i first[kVectors], second[kVectors];
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) LoadPair<kBits, kScales>(numbers, pair, n, first[n], second[n]);
    const char* const x = a + pair * MR * 8;
    Prefetch<MR>(numbers + pair * kPairBytes, kPairBytes);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const __m512i x0 = QuadOf(x + r * 4), x1 = QuadOf(x + (MR + r) * 4);
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[r][n] = _mm512_dpbusd_epi32(sums[r][n], first[n], x0);
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[r][n] = _mm512_dpbusd_epi32(sums[r][n], second[n], x1);
      Pin(sums[r]);
    }
  }
}

// What a row's sums begin with: - zero · Σ x of the group, or of one half.
template <int kBits, GemmScales kScales>
SY_INLINE __m512i StartOf(const float* row, int half) {
  if constexpr (kScales == GemmScales::kFp16AndLeast) return _mm512_setzero_si512();
  __m512 sum = _mm512_set1_ps(row[1]);
  if constexpr (kScales == GemmScales::kFp16OfHalves) {
    const __m512 first = _mm512_set1_ps(row[2]);
    sum = half == 0 ? first : sum - first;
  }
  const __m512i whole = _mm512_cvtps_epi32(sum);
  if constexpr (IsFp4(kScales)) return _mm512_sub_epi32(_mm512_slli_epi32(whole, 2), _mm512_slli_epi32(whole, 4));
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(whole, kBits - 1));
}

// A group's scale and sums of x, of row r of an A block's group.
template <int MR>
SY_INLINE const float* RowGroupAt(const char* a, int r) {
  return reinterpret_cast<const float*>(a + MR * kIntGroup + r * static_cast<int>(sizeof(RowGroup)));
}

// A group of an A block, or one half of it.
struct Part {
  const char* a;
  int half = 0;
};

// c += the sums of a part: the values of gemm_int_cpu.cc's AddGroups.  Sums then begin those of `next`, which keeps the
// units of multiplication busy.
template <int kBits, GemmScales kScales, int MR>
SY_INLINE void AddSums(Part part, const char* b, Part next, __m512i (&sums)[MR][kVectors], float* c) {
  asm volatile("" : : : "memory");  // else g++ keeps c in memory of its own beside args.c
  __m512 scales[kVectors], least[kVectors];
#pragma GCC unroll 2
  for (int n = 0; n < kVectors; ++n) {
    scales[n] = LoadScales<kScales>(b + part.half * kGemmScaleBytes + n * 32);
    if constexpr (kScales == GemmScales::kFp16AndLeast) least[n] = LoadScales<kScales>(b + kGemmScaleBytes + n * 32);
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    const float* const row = RowGroupAt<MR>(part.a, r);
    const __m512 x_scale = _mm512_set1_ps(row[0]), x_sum = _mm512_set1_ps(row[1]);
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) {
      float* const to = c + r * kGemmPanel + n * 16;
      const __m512 whole = _mm512_cvtepi32_ps(sums[r][n]);
      if constexpr (kScales == GemmScales::kFp16AndLeast) {
        const __m512 value = _mm512_fmadd_ps(whole, scales[n], _mm512_mul_ps(least[n], x_sum));
        _mm512_store_ps(to, _mm512_fmadd_ps(value, x_scale, _mm512_load_ps(to)));
      } else {
        _mm512_store_ps(to, _mm512_fmadd_ps(whole, _mm512_mul_ps(scales[n], x_scale), _mm512_load_ps(to)));
      }
    }
    sums[r][0] = sums[r][1] = StartOf<kBits, kScales>(RowGroupAt<MR>(next.a, r), next.half);
    Pin(sums[r]);
  }
}

template <int kBits, GemmScales kScales, int MR>
void MultiplyInt(const GemmBlockArgs& args) {
  constexpr int kBlockBytes = GemmQuantBlockBytes(kBits, kScales);
  constexpr int kRowBytes = kIntGroup + static_cast<int>(sizeof(RowGroup));
  const char* a = static_cast<const char*>(args.a);
  const char* b = static_cast<const char*>(args.b);
  float* c = static_cast<float*>(args.c);
  __m512i sums[MR][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    sums[r][0] = sums[r][1] = StartOf<kBits, kScales>(RowGroupAt<MR>(a, r), 0);
    Pin(sums[r]);
    _mm512_store_ps(c + r * kGemmPanel, _mm512_setzero_ps());
    _mm512_store_ps(c + r * kGemmPanel + 16, _mm512_setzero_ps());
  }
  for (int64_t k = 0; k < args.padded_k; k += kIntGroup, b += kBlockBytes) {
    Prefetch<MR>(b, GemmNumbersOffset(kScales));
    const char* const next = k + kIntGroup < args.padded_k ? a + MR * kRowBytes : a;
    const char* const numbers = b + GemmNumbersOffset(kScales);
    if constexpr (kScales == GemmScales::kFp16OfHalves) {
      AddPairs<kBits, kScales, MR>(0, kPairs / 2, a, numbers, sums);
      AddSums<kBits, kScales, MR>({a, 0}, b, {a, 1}, sums, c);
      AddPairs<kBits, kScales, MR>(kPairs / 2, kPairs, a, numbers, sums);
      AddSums<kBits, kScales, MR>({a, 1}, b, {next, 0}, sums, c);
    } else {
      AddPairs<kBits, kScales, MR>(0, kPairs, a, numbers, sums);
      AddSums<kBits, kScales, MR>({a, 0}, b, {next, 0}, sums, c);
    }
    a = next;
  }
}

}  // namespace
}  // namespace switchyard::ops::SY_KERNEL_NS

#include "workers/ops/gemm/kernels/gemm_int_table.h"
