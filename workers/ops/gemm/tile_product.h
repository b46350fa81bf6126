// Products of bf16 tiles of 16 x 32 for attention_tiles_cpu.cc: on AMX tiles where the file is compiled for them, by
// vdpbf16ps elsewhere.
//
// An output adds its k in rising pairs, with one accumulator, whatever the other outputs are; so its bits depend
// neither on how many rows or columns are computed with it nor on which of the two functions computes it.  (AMX and
// vdpbf16ps
// differ in the last bit from each other.)  Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "workers/ops/core/simd.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int64_t kSide = 16;        // rows of a tile
constexpr int64_t kDepth = 32;       // bf16 in a row of A; B has them as 16 rows of 16 pairs
constexpr int64_t kTileWords = 256;  // 32-bit words of a packed tile

#if defined(__AMX_BF16__)

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler does not know that tile loads read memory: this makes it finish earlier stores.
SY_INLINE void FlushStores() { __asm__ volatile("" : : : "memory"); }

SY_INLINE void BeginTiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}
SY_INLINE void EndTiles() { _tile_release(); }

// c_j[16, 16] = Σ over chunks of a[16, 32] · b_j[32, 16]; c1 null: only c0.
SY_INLINE void TileDots(const uint16_t* a, int64_t a_stride,     // [16, 32 · chunks]
                        const uint32_t* b0, const uint32_t* b1,  // [chunks] packed tiles
                        int64_t chunks, float* c0, float* c1) {
  FlushStores();
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t c = 0; c < chunks; ++c) {
    _tile_loadd(4, a + c * kDepth, a_stride * 2);
    _tile_loadd(5, b0 + c * kTileWords, 64);
    _tile_dpbf16ps(0, 4, 5);
    if (c1 == nullptr) continue;
    _tile_loadd(6, b1 + c * kTileWords, 64);
    _tile_dpbf16ps(1, 4, 6);
  }
  _tile_stored(0, c0, 64);
  if (c1 != nullptr) _tile_stored(1, c1, 64);
}

// out[rows, 16 · d_tiles] += p[rows, 64] · v[64, 16 · d_tiles]; rows <= 16, d_tiles even.
SY_INLINE void TileAccumulate(int64_t,            // rows: all 16 cost the same
                              const uint32_t* p,  // [2][16] rows of 32
                              const uint32_t* v,  // [2][d_tiles] packed tiles
                              int64_t d_tiles, float* out, int64_t out_stride) {
  FlushStores();
  _tile_loadd(4, p, 64);
  _tile_loadd(5, p + kTileWords, 64);
  for (int64_t d = 0; d < d_tiles; d += 2) {
    _tile_loadd(0, out + d * kSide, out_stride * 4);
    _tile_loadd(1, out + (d + 1) * kSide, out_stride * 4);
    _tile_loadd(6, v + d * kTileWords, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, v + (d + 1) * kTileWords, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, v + (d_tiles + d) * kTileWords, 64);
    _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, v + (d_tiles + d + 1) * kTileWords, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_stored(0, out + d * kSide, out_stride * 4);
    _tile_stored(1, out + (d + 1) * kSide, out_stride * 4);
  }
}

#else

SY_INLINE void BeginTiles() {}
SY_INLINE void EndTiles() {}

// sum[i] += Σ over the tile's pairs of a[i, pair] · b[pair].
template <int kRows>
SY_INLINE void AddProduct(const uint16_t* a, int64_t a_stride, const uint32_t* b, __m512* sum) {
  for (int64_t pair = 0; pair < kSide; ++pair) {
    const __m512bh column = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + pair * kSide));
    for (int i = 0; i < kRows; ++i) {
      int32_t both;
      __builtin_memcpy(&both, a + i * a_stride + 2 * pair, sizeof(both));
      sum[i] = _mm512_dpbf16_ps(sum[i], column, reinterpret_cast<__m512bh>(_mm512_set1_epi32(both)));
    }
  }
}

SY_INLINE void TileDots(const uint16_t* a, int64_t a_stride, const uint32_t* b0, const uint32_t* b1, int64_t chunks,
                        float* c0, float* c1) {
  for (int j = 0; j < 2; ++j) {
    const uint32_t* b = j == 0 ? b0 : b1;
    float* to = j == 0 ? c0 : c1;
    if (to == nullptr) continue;
    __m512 sum[kSide] = {};
    for (int64_t c = 0; c < chunks; ++c) AddProduct<kSide>(a + c * kDepth, a_stride, b + c * kTileWords, sum);
    for (int64_t i = 0; i < kSide; ++i) _mm512_storeu_ps(to + i * kSide, sum[i]);
  }
}

template <int kRows>
SY_INLINE void AccumulateRows(const uint32_t* p, const uint32_t* v, int64_t d_tiles, float* out, int64_t out_stride) {
  for (int64_t d = 0; d < d_tiles; ++d) {
    __m512 sum[kRows];
    for (int i = 0; i < kRows; ++i) sum[i] = _mm512_loadu_ps(out + i * out_stride + d * kSide);
    for (int half = 0; half < 2; ++half) {
      AddProduct<kRows>(reinterpret_cast<const uint16_t*>(p + half * kTileWords), kDepth,
                        v + (half * d_tiles + d) * kTileWords, sum);
    }
    for (int i = 0; i < kRows; ++i) _mm512_storeu_ps(out + i * out_stride + d * kSide, sum[i]);
  }
}

// Rows beyond `rows`, up to the next power of two, are computed too.
SY_INLINE void TileAccumulate(int64_t rows, const uint32_t* p, const uint32_t* v, int64_t d_tiles, float* out,
                              int64_t out_stride) {
  if (rows <= 1) return AccumulateRows<1>(p, v, d_tiles, out, out_stride);
  if (rows <= 4) return AccumulateRows<4>(p, v, d_tiles, out, out_stride);
  if (rows <= 8) return AccumulateRows<8>(p, v, d_tiles, out, out_stride);
  AccumulateRows<16>(p, v, d_tiles, out, out_stride);
}

#endif

}  // namespace
}  // namespace switchyard::ops::SY_KERNEL_NS
