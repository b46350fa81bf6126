// The backward pass of the biases of experts' outputs, when each row's output has a weight:
// o = w · (z + bias[expert of the row]), with do given:
//   dw[i] += do[i] · bias,   dbias += Σ over the expert's rows of w[i] · do[i].
// (RowScaleBackward computes what z = h · downᵀ adds to dw.)
//
// In AccDType; dw's bits depend on that row alone, dbias is summed in the order of row_block_sums.h.
// Borrows all memory.  CPU only so far.  Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct ExpertBiasBackwardDesc {
  IntView offsets;                         // [El + 1] rows of expert e: [offsets[e], offsets[e + 1])
  IntView rows = {};                       // [rows] which row of `d` each is; empty: they are in expert order
  absl::Span<const TensorView> biases;     // [El] each [H] model dtype
  absl::Span<const TensorView> gradients;  // [El] each [H] AccDType, added to; raw() == nullptr: not wanted
};

absl::Status ExpertBiasBackward(const Stream& stream, const ExpertBiasBackwardDesc& desc,
                                const TensorView& d,         // [T, H] model dtype
                                const TensorView& weight,    // [rows, 1] AccDType
                                const TensorView& dweight);  // [rows, 1] AccDType, added to

}  // namespace switchyard::ops
