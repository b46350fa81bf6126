// How the scratch memory of attention's way back is laid out: the one list from which both its size and its pointers
// come.  Internal to workers/ops/core.  Functions are static: see simd.h.
#pragma once

#include "workers/ops/attention/attention_layout.h"

namespace switchyard::ops {

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
