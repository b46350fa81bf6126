// How an attention task's scratch memory is laid out: the one list from which both its size and its pointers come.
//
// Internal to workers/ops; no inline functions with external linkage (see simd.h), hence the static ones.
#pragma once

#include <cstdint>

namespace switchyard {

struct AttentionLayout {
  int64_t padded_dim;  // D rounded up to whole vectors, so that inner loops have no tails
  int64_t q, out, scores, max, sum, decay, k, v;  // offsets, in elements of Acc
  int64_t total;                           // elements of Acc
};

static inline __attribute__((always_inline, unused)) AttentionLayout LayOutAttention(int64_t rows, int64_t head_dim,
                                                                                     int64_t key_tile) {
  AttentionLayout l{};
  l.padded_dim = (head_dim + 15) / 16 * 16;
  const int64_t rows_up = (rows + 15) / 16 * 16;
  int64_t at = 0;
  const auto take = [&at](int64_t elements) {
    const int64_t begin = at;
    at += elements;
    return begin;
  };
  l.q = take(rows_up * l.padded_dim);
  l.out = take(rows_up * l.padded_dim);
  l.scores = take(rows_up * key_tile);
  l.max = take(rows_up);
  l.sum = take(rows_up);
  l.decay = take(rows_up);
  l.k = take(key_tile * l.padded_dim);
  l.v = take(key_tile * l.padded_dim);
  l.total = at;
  return l;
}

}  // namespace switchyard
