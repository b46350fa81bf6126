// bf16 with vdpbf16ps: per pair of k, one instruction adds both products of 16 outputs.  12 rows × 2 vectors of sums.
#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops {
namespace {

constexpr int kMaxRows = 12;
constexpr int kPrefetchBytes = 2048;

SY_INLINE __m512bh Pairs(const void* from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }

template <int MR>
void MultiplyRows(const GemmBlockArgs& args) {
  const int32_t* a = static_cast<const int32_t*>(args.a);
  const char* b = static_cast<const char*>(args.b);
  __m512 sum[MR][2];
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < args.padded_k / 2; ++pair) {
    const __m512bh left = Pairs(b);
    const __m512bh right = Pairs(b + 64);
    _mm_prefetch(b + kPrefetchBytes, _MM_HINT_T0);
    _mm_prefetch(b + kPrefetchBytes + 64, _MM_HINT_T0);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[r]));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, left);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, right);
    }
    a += MR;
    b += 128;
  }
  float* c = static_cast<float*>(args.c);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    _mm512_store_ps(c + r * kGemmPanel, sum[r][0]);
    _mm512_store_ps(c + r * kGemmPanel + 16, sum[r][1]);
  }
}

template <int MR = kMaxRows>
void Block(const GemmBlockArgs& args) {
  if (args.rows == MR) return MultiplyRows<MR>(args);
  if constexpr (MR > 1) Block<MR - 1>(args);
}

// [padded_k / 2][rows] pairs.
void Pack(const GemmPackArgs& args) {
  auto* a = static_cast<uint32_t*>(args.a);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t row = args.row_idx != nullptr ? args.row_idx[r] : r;
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
    int64_t pair = 0;
    for (; pair < args.k / 2; ++pair) a[pair * args.rows + r] = LoadBytes<uint32_t>(x + 2 * pair);
    if (args.k % 2 != 0) a[pair++ * args.rows + r] = x[args.k - 1];
    for (; pair < args.padded_k / 2; ++pair) a[pair * args.rows + r] = 0;
  }
}

// The same of columns.
void PackColumns(const GemmPackColumnsArgs& args) {
  auto* a = static_cast<uint32_t*>(args.a);
  const auto* x = static_cast<const uint16_t*>(args.x);
  const __mmask16 valid = static_cast<__mmask16>((1u << args.columns) - 1);
  for (int64_t pair = 0; pair < args.padded_k / 2; ++pair, a += args.columns) {
    const bool one = 2 * pair < args.k, two = 2 * pair + 1 < args.k;
    const __m256i even = one ? _mm256_maskz_loadu_epi16(valid, x + 2 * pair * args.x_stride) : _mm256_setzero_si256();
    const __m256i odd =
        two ? _mm256_maskz_loadu_epi16(valid, x + (2 * pair + 1) * args.x_stride) : _mm256_setzero_si256();
    const __m512i words =
        _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    _mm512_mask_storeu_epi32(a, valid, words);
  }
}

}  // namespace

const GemmKernel kAvx512Bf16GemmKernel = {.max_rows = kMaxRows,
                                          .a_bytes = 2,
                                          .pack = Pack,
                                          .pack_columns = PackColumns,
                                          .pack_panel = avx512::GemmPackPanel,
                                          .block = Block,
                                          .epilogue = avx512::GemmEpilogue};

}  // namespace switchyard::ops
