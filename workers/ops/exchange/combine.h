// Adds the chosen experts' outputs to the residual stream:
//   residual[t] += Σ_k weight[t, k] · y[slot_row[t, k]]  +  sigmoid(shared_gate[t]) · shared[t]
//
// The sum starts at zero, adds k = 0, 1, …, K-1 in that order (never in order of arrival), then the shared expert's
// term, and is added to the residual once: all in AccDType with fused multiply-adds.  So a token's bits depend neither
// on the ranks of its experts nor on the other tokens.  Borrows all memory.
// Errors (InvalidArgument): shapes or dtypes that do not fit; a slot outside [-1, rows), with its index.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct CombineInputs {
  TensorView y;                 // [rows, H] model dtype: expert outputs
  IntView slot_row;             // [T * K] row of y for (t, k); -1 = dropped
  TensorView weight = {};       // [T, K] AccDType; rank 0 = all are 1
  TensorView shared = {};       // [T, H] model dtype; empty view (rank 0) = no shared expert
  TensorView shared_gate = {};  // [T, 1] AccDType: the gate's logit; rank 0 = the shared term has weight 1
};

absl::Status Combine(const Stream& stream, const CombineInputs& inputs,
                     const TensorView& residual);  // [T, H] AccDType, added to

// out[t] = Σ_k weight[t, k] · y[slot_row[t, k]], the same sum, rounded once.  Unimplemented except on the CPU, and with
// a shared expert.
absl::Status AddOutputs(const Stream& stream, const CombineInputs& inputs,
                        const TensorView& out);  // [T, H] model dtype

}  // namespace switchyard::ops
