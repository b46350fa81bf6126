// From "token t chose experts e_0 … e_K-1" to rows sorted by expert, as grouped GEMMs need them.  Combine (combine.h)
// undoes it.
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

// Where the order goes; memory is the caller's, on the stream's device.
struct ExpertOrder {
  TensorView offsets;   // [E + 1] int32: rows of expert e are [offsets[e], offsets[e + 1])
  TensorView token;     // [T * K] int32: which token a sorted row comes from; undefined from offsets[E] on
  TensorView slot_row;  // [T * K] int32: where (t, k) went; -1 = dropped
};

// Errors (InvalidArgument): shapes, dtypes or devices that do not fit; on the CPU an id outside [-1, num_experts), with
// its place.
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
