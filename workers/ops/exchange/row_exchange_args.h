// Arguments of the kernels of expert_places.h and row_exchange.h: plain, for nvcc; part of the table in kernels_cuda.h.
//
// T rows, K choices each; arrays of [T * K] are in the order of (row, choice).
#pragma once

#include <cstdint>

#include "workers/ops/core/row_blocks.h"

namespace switchyard::ops {

struct ExpertPlacesArgs {
  const int32_t* topk_idx;       // [T, K], -1 = dropped
  const int32_t* place_offsets;  // [E + 1]
  const int32_t* places;         // [places, 2]: rank, slot
  const int32_t* slot_here;      // [E]; -1 = not on this rank
  int64_t rows, top_k, experts;
  const int32_t* place_rows;      // [places]; null: places take turns
  const int32_t* sorted_at;       // [T, K]
  const int32_t* expert_offsets;  // [E + 1]
  int64_t first_token;
  int32_t rank;
  int32_t* rank_of;   // [T, K]; -1 = dropped
  int32_t* slot_of;   // [T, K]; -1 = dropped
  int32_t* first_of;  // [T, K] rank_of if no earlier choice of the row has this rank, else -1
};
// The most choices that a row may have on devices.
inline constexpr int64_t kMaxExchangeTopK = 256;

// counts[r] = {rows, pairs} for rank r.
struct CountRoutesArgs {
  int64_t ranks;
  const int32_t* row_offsets;   // [R + 1]
  const int32_t* pair_offsets;  // [R + 1]
  int32_t* counts;              // [R, 2]
};

struct PackRowsArgs {
  RowBlocks blocks;  // of `send`
  const void* x;     // [T, H]
  int64_t x_stride_bytes;
  int64_t rows, top_k;
  const int32_t* rank_of;
  const int32_t* slot_of;
  const int32_t* first_of;
  const int32_t* row_offsets;   // [R + 1] of the rows sorted by rank
  const int32_t* row_pos;       // [T * K] where first_of's entry is among them
  const int32_t* pair_offsets;  // [R + 1] of the pairs sorted by rank
  const int32_t* pair_pos;      // [T * K]
  void* send;
  void* own;             // [T, H] contiguous: rows that have an expert on this rank
  int32_t first_output;  // where outputs of other ranks begin
  int32_t* output_row;   // [T * K]: -1 = dropped; this rank's own entries are left as they are
};

struct ReadPairsArgs {
  RowBlocks blocks;  // of `received`
  const void* received;
  const int32_t* rank_of;  // [T * K], T * K = blocks.of[rank].max_pairs
  const int32_t* slot_of;
  int64_t num_slots;  // El
  int32_t* slots;     // [num_pairs]; -1 = there is none
};

struct PlacePairsArgs {
  RowBlocks blocks;  // of `received`
  const void* received;
  int64_t top_k;
  const int32_t* y_row;  // [num_pairs] in expert order; -1 = none
  int32_t* x_rows;       // [rows of y]
  int32_t* output_row;   // [T * K]: of this rank's own
};

}  // namespace switchyard::ops
