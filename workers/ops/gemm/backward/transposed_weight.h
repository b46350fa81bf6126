// The transpose of a matrix as a Weight: dx = dy · w is Gemm(dy, transposed w).
//
// Packed again after each step of an optimizer, on the stream's threads, straight from the rows, without a copy of the
// whole.  Blocks until done.  Borrows all memory.  CPU only so far.
#pragma once

#include "absl/status/status.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// Fills all of w, which has been allocated for [k, n] in the dtype of the products; elements are rounded to nearest
// even.  Errors (InvalidArgument): shapes that are not each other's transpose, a gated or empty weight, a dtype that is
// not floating, a device.
absl::Status PackTransposed(const Stream& stream,
                            const TensorView& rows,  // [n, k] any floating dtype; rows may be strided
                            Weight* w);              // [k, n] kPanels

}  // namespace switchyard::ops
