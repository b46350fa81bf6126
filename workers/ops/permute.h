// From "token t chose experts e_0 … e_K-1" to rows sorted by expert, as grouped GEMMs want them, and back.
//
// The sort is stable: within an expert, rows come in the order of (token, k).  Experts without tokens have empty
// ranges. Combine (combine.h) undoes it.  Index building is single-threaded and linear; gathering is parallel over
// rows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// Reused from step to step: Build keeps the vectors' capacity.  Thread-compatible.
struct ExpertOrder {
  std::vector<int64_t> offsets;   // [E + 1] rows of expert e are [offsets[e], offsets[e + 1])
  std::vector<int32_t> token;     // [rows] which token a sorted row comes from
  std::vector<int32_t> slot_row;  // [T * K] where (t, k) went; -1 = dropped

  int64_t num_rows() const { return static_cast<int64_t>(token.size()); }
};

// Errors (InvalidArgument): topk_idx not int32 [T, K], an id outside [-1, num_experts), with its place.
absl::Status BuildExpertOrder(const TensorView& topk_idx,  // [T, K] int32, -1 = dropped
                              int64_t num_experts, ExpertOrder* order);

// y[i] = x[rows[i]].  Any dtype.  Errors (InvalidArgument): shapes or dtypes that differ, a row outside x.
absl::Status GatherRows(const Stream& stream,
                        const TensorView& x,             // [T, H]; rows may be strided
                        absl::Span<const int32_t> rows,  // [rows]
                        const TensorView& y);            // [rows, H]

}  // namespace switchyard
