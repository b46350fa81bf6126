// bf16 with AMX tiles: up to 2 × 2 tiles of 16 × 16 sums, 32 k an instruction.
//
// tdpbf16ps rounds differently from vdpbf16ps, so on a machine with AMX every bf16 product goes through tiles, one row
// included: a tile with few rows costs little beside the memory that its weights come from.
#include "workers/ops/core/simd.h"
#include "workers/ops/core/transpose.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;
constexpr int kTileBytes = 1024;
constexpr int kStepBytes = 2 * kTileBytes;  // of a panel, per 32 k
constexpr int kAheadBytes = 3072;  // 4096 is worse by a quarter: the lines fall into the same sets of the first cache

// Tiles 0 1 / 2 3: sums, 4 5: rows of x, 6 7: the panel's halves.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};
};

// The rows that this thread's tiles are configured for; 0 = tiles are released.
thread_local int64_t configured_rows = 0;

void Configure(int64_t rows) {
  if (rows == configured_rows) return;
  const int64_t first = rows < kTileRows ? rows : kTileRows;
  const int64_t second = rows - first;
  const int64_t tile_rows[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = static_cast<uint8_t>(tile_rows[i]);
    config.colsb[i] = tile_rows[i] > 0 ? 64 : 0;
  }
  // g++ 12 assumes that only the first eight bytes are read and drops the other stores.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  configured_rows = rows;
}

void End() {
  _tile_release();
  configured_rows = 0;
}

// A panel that comes from memory.  Tile loads, which jump over every other line, leave a tenth of the bandwidth unused
// (32 instead of 35 GB/s on two cores): plain loads go ahead of them, line by line, and prefetches ahead of those.
template <int kBytes>
SY_INLINE void ReadAhead(const char* from) {
#pragma GCC unroll 32
  for (int line = 0; line < kBytes; line += 64) {
    _mm_prefetch(from + kAheadBytes + line, _MM_HINT_T0);
    __m512i value = _mm512_load_si512(from + line);
    __asm__ volatile("" : : "v"(value));
  }
}

// 1 … 16 rows: as fast as memory gives the panel.
template <bool kFromMemory>
void FewRows(const GemmBlockArgs& args) {
  const char* a = static_cast<const char*>(args.a);
  const char* b = static_cast<const char*>(args.b);
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t k = 0; k < args.padded_k; k += kTileK) {
    if constexpr (kFromMemory) ReadAhead<kStepBytes>(b);
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    a += args.rows * 64;
    b += kStepBytes;
  }
  float* c = static_cast<float*>(args.c);
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
}

// 17 … 32 rows.  (Fetching the next panel into the second cache meanwhile was tried, in several ways, and gains
// nothing: prefetches hold the line buffers that the tile loads need.)
template <bool kFromMemory>
void ManyRows(const GemmBlockArgs& args) {
  const char* a = static_cast<const char*>(args.a);
  const char* a2 = a + kTileRows * args.padded_k * 2;
  const int64_t a2_step = (args.rows - kTileRows) * 64;
  const char* b = static_cast<const char*>(args.b);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < args.padded_k; k += kTileK) {
    if constexpr (kFromMemory) ReadAhead<kStepBytes>(b);
    _tile_loadd(6, b, 128);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 64, 128);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a2, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kTileBytes;
    a2 += a2_step;
    b += kStepBytes;
  }
  float* c = static_cast<float*>(args.c);
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
  _tile_stored(2, c + 16 * kGemmPanel, 128);
  _tile_stored(3, c + 16 * kGemmPanel + 16, 128);
}

void Block(const GemmBlockArgs& args) {
  Configure(args.rows);
  if (args.rows > kTileRows) return args.from_memory ? ManyRows<true>(args) : ManyRows<false>(args);
  return args.from_memory ? FewRows<true>(args) : FewRows<false>(args);
}

// Per 16 rows: [padded_k / 32][rows][32].
void Pack(const GemmPackArgs& args) {
  char* a = static_cast<char*>(args.a);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t first = r / kTileRows * kTileRows;
    const int64_t rows = args.rows - first < kTileRows ? args.rows - first : kTileRows;
    const int64_t row = args.row_idx != nullptr ? args.row_idx[r] : r;
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
    char* to = a + first * args.padded_k * 2 + (r - first) * 64;
    int64_t k = 0;
    for (; k + kTileK <= args.k; k += kTileK, to += rows * 64) _mm512_storeu_si512(to, _mm512_loadu_si512(x + k));
    if (k < args.k) {
      const __mmask32 valid = (__mmask32{1} << (args.k - k)) - 1;
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(valid, x + k));
    }
  }
}

// The same of columns: words of two k each, 16 x 16 of them turned at a time.
void PackColumns(const GemmPackColumnsArgs& args) {
  char* a = static_cast<char*>(args.a);
  for (int64_t first = 0; first < args.columns; first += kTileRows) {
    const int64_t columns = args.columns - first < kTileRows ? args.columns - first : kTileRows;
    const auto* x = static_cast<const uint16_t*>(args.x) + first;
    const __mmask16 valid = static_cast<__mmask16>((1u << columns) - 1);
    char* to = a + first * args.padded_k * 2;
    for (int64_t k = 0; k < args.padded_k; k += kTileK, to += columns * 64) {
      __m512i words[16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t even = k + 2 * i, odd = even + 1;
        const __mmask16 one = even < args.k ? valid : __mmask16{0}, two = odd < args.k ? valid : __mmask16{0};
        words[i] = _mm512_or_si512(
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(one, x + even * args.x_stride)),
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(two, x + odd * args.x_stride)), 16));
      }
      alignas(64) uint32_t turned[256];
      Transpose(words, turned);
      __builtin_memcpy(to, turned, columns * 64);
    }
  }
}

}  // namespace

const GemmKernel kAmxBf16GemmKernel = {.max_rows = 2 * kTileRows,
                                       .a_bytes = 2,
                                       .pack = Pack,
                                       .pack_columns = PackColumns,
                                       .pack_panel = avx512::GemmPackPanel,
                                       .block = Block,
                                       .epilogue = avx512::GemmEpilogue,
                                       .end = End};

}  // namespace switchyard::ops
