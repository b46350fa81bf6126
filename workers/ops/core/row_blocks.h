// The layout of an exchange's memory: each rank's rows and pairs.  A pair is (row, slot of an expert at the receiver).
//
// The memory is a matrix of rows of row_bytes each, so that experts read rows where they arrived.  A rank's block:
//   int32 num_rows, num_pairs, pair_row[max_pairs], pair_slot[max_pairs]; padding; rows [max_rows, H]
// Head and rows begin at rows of the matrix that are multiples of 16 bytes.  A rank without pairs has no block; this
// rank's own block has rows but no head.  Pairs are numbered through all blocks: this rank's own first, then the
// others' by rank.  Plain data: for hosts and, by value, for kernels.
#pragma once

#include <cstdint>

namespace switchyard::ops {

// Ranks that an exchange on a device may have: their list is a kernel's argument, which may have 4 KB.
inline constexpr int kMaxExchangeRanks = 128;

struct RowBlock {
  int32_t head_row;   // row of the matrix where the head begins
  int32_t first_row;  // where the rows begin
  int32_t max_rows;
  int32_t max_pairs;
  int32_t pair_begin;  // number of its first pair
};

struct RowBlocks {
  int32_t ranks;
  int32_t rank;       // this one
  int32_t num_rows;   // of the matrix
  int32_t num_pairs;  // of all blocks
  int64_t row_bytes;
  RowBlock of[kMaxExchangeRanks];
};

struct RowBlockSize {
  int64_t rows = 0;
  int64_t pairs = 0;
};

// The number of int32 before pair_row in a rank's head: num_rows and num_pairs.
inline constexpr int kRowBlockHeadInts = 2;

// sizes[r]: rank r's bounds, or exact sizes; [ranks].  False: more rows or pairs in all than int32 counts, or more
// ranks than kMaxExchangeRanks.  REQUIRES: row_bytes even, positive.
bool LayOutRowBlocks(int rank, int ranks, int64_t row_bytes, const RowBlockSize* sizes, RowBlocks* blocks);

}  // namespace switchyard::ops
