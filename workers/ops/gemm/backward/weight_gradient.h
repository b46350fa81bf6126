// dw += dyᵀ · x: the gradient of a matrix product's weight (gemm.h, grouped_gemm.h), always added to what is there.
//
// Products and sums are in AccDType.  Each element adds its rows in runs of kWeightGradientRows that begin at the
// group's first row: inside a run in one order, as a matrix product of that depth, then run by run.  So its bits depend
// on the group's rows, dtype and instruction set, not on threads or on other groups.  Threads share out groups, rows
// and columns of dw.  (bf16: vdpbf16ps and AMX take denormal numbers for zero.)
// Blocks until done.  Thread-compatible per stream.  Borrows all memory.  CPU only so far (Unimplemented elsewhere).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr int64_t kWeightGradientRows = 512;

// Errors (InvalidArgument): shapes or dtypes that do not fit, with both values.  M = 0 adds nothing.
absl::Status WeightGradient(const Stream& stream,
                            const TensorView& dy,        // [M, n] model dtype; rows may be strided
                            const TensorView& x,         // [M, k] model dtype; rows may be strided
                            const TensorView& gradient,  // [n, k] AccDType; rows may be strided; TensorView(): no op
                            Isa isa = CurrentIsa());     // tests only

struct GroupedWeightGradientDesc {
  IntView offsets;         // [El + 1] rows of expert e: [offsets[e], offsets[e + 1])
  IntView x_rows = {};     // [rows] or none: row i of dy goes with row x_rows[i] of x, as in GroupedGemmDesc
  Isa isa = CurrentIsa();  // tests only
};

// A gradient for each expert; an expert's bits are those of WeightGradient over its rows alone.
// Errors (InvalidArgument): as above; offsets that fall or do not end at dy's rows, a row outside x.
absl::Status GroupedWeightGradient(const Stream& stream, const GroupedWeightGradientDesc& desc,
                                   const TensorView& dy,  // [rows, n]
                                   const TensorView& x,   // [rows, k] or, with x_rows, [T, k]
                                   // [El] each [n, k] AccDType, or TensorView(): none is computed
                                   absl::Span<const TensorView> gradients);

}  // namespace switchyard::ops
