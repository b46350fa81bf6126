// The layout of the scratch memory of attention's tasks, forward and backward, for both sizes and pointers; and the
// prefetch of a paged key.
//
// Internal to workers/ops.  Functions are static: kernel files must not define inline ones with linkage (see simd.h).
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels.h"

namespace switchyard::ops {

// Prefetches the key and value at `pos`.  The cache's blocks are scattered, so the processor cannot predict the next
// address; at long contexts a decode would wait for memory at each block.
template <class Elem>
static inline __attribute__((always_inline)) void PrefetchKey(const AttentionTask& t, int64_t pos) {
  const int64_t at = t.block_table[pos / t.block_size] * t.block_stride + pos % t.block_size * t.head_dim;
  for (int64_t d = 0; d < t.head_dim; d += 64 / static_cast<int64_t>(sizeof(Elem))) {
    __builtin_prefetch(static_cast<const Elem*>(t.k) + at + d, 0, 2);
    __builtin_prefetch(static_cast<const Elem*>(t.v) + at + d, 0, 2);
  }
}

// Allocates ranges [begin, begin + count) one after the other, rounded up to whole cache lines.
struct ScratchCursor {
  int64_t at = 0;
};

static inline __attribute__((always_inline)) int64_t TakeScratch(ScratchCursor* cursor, int64_t count, int64_t line) {
  const int64_t begin = cursor->at;
  cursor->at += (count + line - 1) / line * line;
  return begin;
}

struct AttentionLayout {  // offsets in elements of Acc
  int64_t padded_dim;     // D rounded up to whole vectors, so that inner loops have no tails
  int64_t q, out, scores, max, sum, decay, k, v, total;
};

static inline __attribute__((always_inline)) AttentionLayout LayOutAttention(int64_t rows, int64_t head_dim,
                                                                             int64_t key_tile) {
  AttentionLayout l{};
  ScratchCursor cursor;
  l.padded_dim = (head_dim + 15) / 16 * 16;
  l.q = TakeScratch(&cursor, rows * l.padded_dim, 16);
  l.out = TakeScratch(&cursor, rows * l.padded_dim, 16);
  l.scores = TakeScratch(&cursor, rows * key_tile, 16);
  l.max = TakeScratch(&cursor, rows, 16);
  l.sum = TakeScratch(&cursor, rows, 16);
  l.decay = TakeScratch(&cursor, rows, 16);
  l.k = TakeScratch(&cursor, key_tile * l.padded_dim, 16);
  l.v = TakeScratch(&cursor, key_tile * l.padded_dim, 16);
  l.total = cursor.at;
  return l;
}

struct TileAttentionLayout {  // offsets in bytes
  int64_t padded_dim;         // D rounded up to the depth of a tile product
  int64_t row_tiles, chunks;
  int64_t q, out, scores, max, sum, p, k, v, total;
};

static inline __attribute__((always_inline)) TileAttentionLayout LayOutTileAttention(int64_t rows, int64_t head_dim) {
  constexpr int64_t kKeyTile = 64, kTileBytes = 1024;
  TileAttentionLayout l{};
  ScratchCursor cursor;
  l.padded_dim = (head_dim + 31) / 32 * 32;
  l.row_tiles = (rows + 15) / 16;
  l.chunks = l.padded_dim / 32;
  l.q = TakeScratch(&cursor, l.row_tiles * l.chunks * kTileBytes, 64);
  l.out = TakeScratch(&cursor, l.row_tiles * 16 * l.padded_dim * 4, 64);
  l.scores = TakeScratch(&cursor, l.row_tiles * 16 * kKeyTile * 4, 64);
  l.max = TakeScratch(&cursor, l.row_tiles * 16 * 4, 64);
  l.sum = TakeScratch(&cursor, l.row_tiles * 16 * 4, 64);
  l.p = TakeScratch(&cursor, 2 * kTileBytes, 64);
  l.k = TakeScratch(&cursor, 16 * l.padded_dim * 2, 64);
  l.v = TakeScratch(&cursor, kKeyTile * l.padded_dim * 2, 64);
  l.total = cursor.at;
  return l;
}

struct AttentionBackwardLayout {  // offsets in elements of Acc
  int64_t padded_rows, padded_dim;
  int64_t dq, dk, dv, max, sum, delta, q, dout, k, k_turned, v_turned, p, ds, total;
};

static inline __attribute__((always_inline)) AttentionBackwardLayout LayOutAttentionBackward(int64_t rows,
                                                                                             int64_t head_dim) {
  constexpr int64_t kTile = 64;
  AttentionBackwardLayout l{};
  ScratchCursor cursor;
  l.padded_rows = (rows + kTile - 1) / kTile * kTile;
  l.padded_dim = (head_dim + 15) / 16 * 16;
  const int64_t rows_size = l.padded_rows * l.padded_dim, tile_size = kTile * l.padded_dim;
  l.dq = TakeScratch(&cursor, rows_size, 16);
  l.dk = TakeScratch(&cursor, rows_size, 16);
  l.dv = TakeScratch(&cursor, rows_size, 16);
  l.max = TakeScratch(&cursor, l.padded_rows, 16);
  l.sum = TakeScratch(&cursor, l.padded_rows, 16);
  l.delta = TakeScratch(&cursor, l.padded_rows, 16);
  l.q = TakeScratch(&cursor, tile_size, 16);
  l.dout = TakeScratch(&cursor, tile_size, 16);
  l.k = TakeScratch(&cursor, tile_size, 16);
  l.k_turned = TakeScratch(&cursor, tile_size, 16);
  l.v_turned = TakeScratch(&cursor, tile_size, 16);
  l.p = TakeScratch(&cursor, kTile * kTile, 16);
  l.ds = TakeScratch(&cursor, kTile * kTile, 16);
  l.total = cursor.at;
  return l;
}

}  // namespace switchyard::ops
