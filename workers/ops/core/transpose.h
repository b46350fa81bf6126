// The transpose of a square of 16 x 16 words, with AVX-512.
//
// Internal to workers/ops kernel files.  Functions are static: see simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

// out[c][r] = lane c of in[r].
SY_INLINE void Transpose(const __m512i* in, uint32_t* out) {
  __m512i a[16], b[16];
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      b[4 * i + 2 * j] = _mm512_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
      b[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
    }
  }
  // b[4i + c] holds column c + 4q of rows 4i … 4i+3 in its quarter q.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    _mm512_storeu_si512(out + c * 16, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(out + (c + 4) * 16, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_storeu_si512(out + (c + 8) * 16, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_storeu_si512(out + (c + 12) * 16, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

}  // namespace
}  // namespace switchyard::ops
