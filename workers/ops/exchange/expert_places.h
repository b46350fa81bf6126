// Finds the replica that computes each choice (t, k) of an expert, in the stream's order.
//
// The rule is ExpertLayout::PlaceOf (workers/moe/dispatch/expert_layout.h): on this rank, if it has the expert; else
// the expert's places take turns by source rank and token.  Or the balancer decides how many rows a place gets
// (DealtRows): an expert's first place gets the first of this rank's rows, and so on.  Every rank can compute this for
// any row, so no message is needed.  Borrows all memory.  Does not make the table: workers/moe/dispatch has
// device_expert_layout.h, which makes it from a layout, and device_split.h, which makes it from a split.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// How many rows each place gets, and the number of (t, k) among its expert's rows: its index in an ExpertOrder
// (permute.h) of all rows that are dealt out; the op's rows are a part of these.
struct DealtRows {
  IntView place_rows;      // [places] of this rank's rows; empty: nothing is dealt out
  IntView sorted_at;       // [T, K] of the op's rows: ExpertOrder::slot_row
  IntView expert_offsets;  // [E + 1] ExpertOrder::offsets
};

// The places of experts, from one rank's view.  On the stream's device.
struct PlaceTable {
  IntView place_offsets;  // [E + 1] places of expert e: [place_offsets[e], place_offsets[e + 1])
  IntView places;         // [places * 2] rank, slot at that rank
  IntView slot_here;      // [E] slot at this rank; -1 = not here; empty where rows are dealt out
  int rank = 0;           // this one
  DealtRows dealt = {};
};

// Memory is the caller's, on the stream's device.  All [T, K] int32, contiguous.
struct ExpertPlaces {
  TensorView rank_of;  // -1 = dropped
  TensorView slot_of;  // of the expert at that rank; -1 = dropped
  // rank_of where no earlier choice of the row has that rank, else -1: a row travels once to a rank
  TensorView first_of;
};

// first_token: index of row 0 in the rank's batch.
// Errors (InvalidArgument): shapes, dtypes or devices that do not fit; on the CPU an id outside [-1, E), with its
// index, and Internal, a row beyond the rows of all places; on other devices K > 256 (there such a row counts as
// dropped).
absl::Status FindExpertPlaces(const Stream& stream,
                              const TensorView& topk_idx,  // [T, K] int32, contiguous, -1 = dropped
                              const PlaceTable& table, int64_t first_token, const ExpertPlaces& found);

}  // namespace switchyard::ops
