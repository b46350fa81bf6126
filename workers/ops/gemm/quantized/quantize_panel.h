// Quantizes rows into panels of a weight of few bits, and gets their values back.  Internal to workers/ops.
//
// A panel is a series of blocks, one for each group of 32 k: 32 scales (16 bits each), of Q4_1 32 least values, of Q6_K
// 32 scales of the second 16 k, then the numbers of 32 columns:
//   8 bits [8 quads of k][32 columns][4] bytes
//   4 bits [4][4][8 columns][4] bytes: [p][v][c][i] has column 8 v + c at k = 8 p + i in its lower half, at 8 p + 4 + i
//          in its upper one
//   6 bits the lower 4 as 4 bits are, then the upper 2: [2][4][8 columns][4] bytes: [h][v][c][i] has those of column
//          8 v + c at k = 16 h + 4 j + i in its bits 2 j and 2 j + 1
// A byte has one column's numbers alone, so that different columns may be written at once.
#pragma once

#include <cstdint>

#include "workers/ops/gemm/quantized/weight_format.h"

namespace switchyard::ops {

inline constexpr int64_t kUpperBitsOffset = kQuantGroup * 32 / 2;  // of the upper 2 of 6 bits, behind the lower 4

// Bytes of a panel's block.  REQUIRES: not kPlain.
constexpr int64_t QuantBlockBytes(WeightFormat format) {
  return (HasLeast(format) || ScaleGroup(format) < kQuantGroup ? 128 : 64) + kQuantGroup * 32 * WeightBits(format) / 8;
}

// Numbers k of a column, [0, k) of which exist; what pads the last group becomes zero.  The scale of int4 and q4_0 is
// the one of several candidates with the least sum of squared errors.  REQUIRES: they are finite.
void QuantizeColumn(WeightFormat format, const float* from, int64_t k, int64_t column, char* panel);
// Stores `count` rows of numbers that are quantized already as columns [column, column + count) of a panel, a group of
// all of them after the other, so that a block stays in the first cache.
void StoreColumns(WeightFormat format, const StoredNumbers& rows, int64_t count, int64_t k, int64_t column,
                  char* panel);
// The same column's values, fp32.
void DequantizeColumn(WeightFormat format, const char* panel, int64_t column, int64_t k, float* to);

}  // namespace switchyard::ops
