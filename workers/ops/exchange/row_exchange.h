// Packing and unpacking of the rows that ranks exchange for their experts, in the stream's order.
//
//   RouteRows → PackRows → (all-to-all of blocks) → ReadPairs → BuildExpertOrder of the slots → PlacePairs
//   → experts → GatherPresent of the answers → (all-to-all back) → Combine
//
// Rows go once to each rank with one of their experts, in the order of the batch; pairs in the order of (t, k), so the
// result does not depend on the order of threads.  The host knows the blocks' sizes (row_blocks.h: bounds, or exact);
// counts are on the device, in the blocks' heads.  Borrows all memory, on the stream's device.  Does not communicate.
// Errors: InvalidArgument (shapes, dtypes, devices); on the CPU also Internal (a received block contradicts itself).
// On other devices a pair that names a row or slot out of range is ignored, so no memory outside is touched.
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

// A step's rows and pairs, sorted by the rank they go to, stably.  The "experts" of both orders are ranks.
struct RowRoutes {
  ExpertPlaces places;
  ExpertOrder pairs;  // of places.rank_of: [R + 1], [T * K], [T * K]
  ExpertOrder rows;   // of places.first_of; both may share the memory of `token`, which is not read
};

// Fills routes.  Arguments and errors as FindExpertPlaces.
absl::Status RouteRows(const Stream& stream, const TensorView& topk_idx, const PlaceTable& table, int64_t first_token,
                       const RowRoutes& routes);

// counts[r] = {rows, pairs} that go to rank r, this one included.
absl::Status CountRoutes(const Stream& stream, const RowRoutes& routes,
                         const TensorView& counts);  // [R, 2] int32

// The memory for packed rows.
struct PackedRows {
  TensorView send;           // [blocks.num_rows, H] the blocks of `blocks`
  TensorView own;            // [T, H] contiguous: becomes x[t] where t has an expert on this rank, else left as it is
  int64_t first_output = 0;  // output of pair p that goes to another rank will come as row first_output + p
  TensorView output_row;     // [T * K] int32: that row; -1 = dropped; this rank's own pairs: left for PlacePairs
};

// On the CPU InvalidArgument if a block has more rows or pairs than its bounds; elsewhere the rest is dropped.  (Bounds
// of T rows and T * min(K, experts there) pairs always suffice if a row's choices differ from each other.)
absl::Status PackRows(const Stream& stream, const RowBlocks& blocks, const RowRoutes& routes,
                      const TensorView& x,  // [T, H]; rows may be strided
                      const PackedRows& packed);

// slots[p] = the slot of the p-th pair that this rank computes; -1 = no such pair.
// REQUIRES: this rank's own block has T rows and T * K pairs (or none).
absl::Status ReadPairs(const Stream& stream, const RowBlocks& blocks, const ExpertPlaces& places,
                       const TensorView& received,  // [blocks.num_rows, H]
                       int64_t num_slots,           // El
                       const TensorView& slots);    // [blocks.num_pairs] int32

// After the sort of the slots: x_rows[y_row[p]] = the row of `received` of pair p.
struct PairPlaces {
  TensorView y_row;       // [num_pairs] int32: ExpertOrder::slot_row of the slots
  TensorView x_rows;      // int32, with room for every row of y
  TensorView output_row;  // [T * K] int32: becomes y_row for this rank's own pairs
};
absl::Status PlacePairs(const Stream& stream, const RowBlocks& blocks, int64_t top_k, const TensorView& received,
                        const PairPlaces& places);

}  // namespace switchyard::ops
