// Sorts the rows of tokens by the experts that they chose, as grouped GEMMs need them.  Combine (combine.h) is the
// inverse.
//
// The sort is stable: within an expert, rows come in the order of (token, k).  Experts without tokens have empty
// ranges. On the CPU index building is single-threaded and linear; gathering is parallel over rows.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// The order; memory is the caller's, on the stream's device.
struct ExpertOrder {
  TensorView offsets;   // [E + 1] int32: rows of expert e are [offsets[e], offsets[e + 1])
  TensorView token;     // [T * K] int32: the token of a sorted row; undefined from offsets[E] on
  TensorView slot_row;  // [T * K] int32: the sorted row of (t, k); -1 = dropped
};

// Errors (InvalidArgument): shapes, dtypes or devices that do not fit; on the CPU an id outside [-1, num_experts), with
// its index.
absl::Status BuildExpertOrder(const Stream& stream,
                              const TensorView& topk_idx,  // [T, K] int32, contiguous, -1 = dropped
                              int64_t num_experts, const ExpertOrder& order);

// counts[e] += how many of topk_idx are e.  Errors (InvalidArgument): as above.
absl::Status CountExperts(const Stream& stream,
                          const TensorView& topk_idx,  // int32, any shape, contiguous; -1 = dropped
                          const TensorView& counts);   // [E] int32

// y[i] = x[rows[i]].  Any dtype.  Errors (InvalidArgument): shapes or dtypes that differ, a row outside x.
absl::Status GatherRows(const Stream& stream,
                        const TensorView& x,   // [T, H]; rows may be strided
                        const IntView& rows,   // [rows]
                        const TensorView& y);  // [rows, H]
// The same, but a row -1 leaves that row of y as it is.
absl::Status GatherPresent(const Stream& stream, const TensorView& x, const IntView& rows, const TensorView& y);

}  // namespace switchyard::ops
