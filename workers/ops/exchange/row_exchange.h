// Packing and unpacking of the rows that ranks exchange for their experts, in the stream's order.
//
//   RouteRows → PackRows → (all-to-all of blocks) → ReadPairs → BuildExpertOrder of the slots → PlacePairs
//   → experts → GatherPresent of the answers → (all-to-all back) → Combine
//
// Rows go once to each rank that has one of their experts, in the order of the batch; pairs in the order of (t, k), so
// nothing depends on which thread was first.  The host knows the blocks' sizes (row_blocks.h: bounds, or exact); counts
// are on the device, in the blocks' heads.  Borrows all memory, on the stream's device.  Communicates nothing itself.
// Errors: InvalidArgument (shapes, dtypes, devices); on the CPU also Internal (a received block contradicts itself). On
// other devices a pair that names a row or slot outside is left out: nothing outside is reachable.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/core/row_blocks.h"
#include "workers/ops/exchange/expert_places.h"
#include "workers/ops/exchange/permute.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// Where a step's rows and pairs go: sorted by rank, stably.  "Experts" of both orders are ranks.
struct RowRoutes {
  ExpertPlaces places;
  ExpertOrder pairs;  // of places.rank_of: [R + 1], [T * K], [T * K]
  ExpertOrder rows;   // of places.first_of; both may share the memory of `token`, which nobody reads
};

// Fills routes.  Arguments and errors as FindExpertPlaces.
absl::Status RouteRows(const Stream& stream, const TensorView& topk_idx, const PlaceTable& table, int64_t first_token,
                       const RowRoutes& routes);

// counts[r] = {rows, pairs} that go to rank r, this one included.
absl::Status CountRoutes(const Stream& stream, const RowRoutes& routes,
                         const TensorView& counts);  // [R, 2] int32

// Where packed rows go.
struct PackedRows {
  TensorView send;           // [blocks.num_rows, H] the blocks of `blocks`
  TensorView own;            // [T, H] contiguous: becomes x[t] where t has an expert on this rank, else left as it is
  int64_t first_output = 0;  // output of pair p that goes to another rank will come as row first_output + p
  TensorView output_row;     // [T * K] int32: that row; -1 = dropped; this rank's own pairs: left for PlacePairs
};

// On the CPU InvalidArgument if a block has more rows or pairs than its bounds; elsewhere the rest is dropped.  (It has
// not where a row's choices differ from each other and bounds are rows and rows * min(K, experts there).)
absl::Status PackRows(const Stream& stream, const RowBlocks& blocks, const RowRoutes& routes,
                      const TensorView& x,  // [T, H]; rows may be strided
                      const PackedRows& packed);

// slots[p] = slot of pair p of those that this rank computes; -1 where there is none.
// REQUIRES: this rank's own block has T rows and T * K pairs (or none).
absl::Status ReadPairs(const Stream& stream, const RowBlocks& blocks, const ExpertPlaces& places,
                       const TensorView& received,  // [blocks.num_rows, H]
                       int64_t num_slots,           // El
                       const TensorView& slots);    // [blocks.num_pairs] int32

// After the sort of the slots: x_rows[y_row[p]] = row of `received` that pair p is of.
struct PairPlaces {
  TensorView y_row;       // [num_pairs] int32: ExpertOrder::slot_row of the slots
  TensorView x_rows;      // int32, with room for every row of y
  TensorView output_row;  // [T * K] int32: becomes y_row for this rank's own pairs
};
absl::Status PlacePairs(const Stream& stream, const RowBlocks& blocks, int64_t top_k, const TensorView& received,
                        const PairPlaces& places);

}  // namespace switchyard::ops
