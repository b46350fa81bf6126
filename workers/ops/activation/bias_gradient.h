// The gradient of a bias: gradient[j] += Σ over rows of dy[row][j], in AccDType, in the order of row_block_sums.h.
//
// Borrows all memory.  CPU only so far.  Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status BiasGradient(const Stream& stream,
                          const TensorView& dy,         // [M, n] model dtype; rows may be strided
                          const TensorView& gradient);  // [n] AccDType, contiguous

}  // namespace switchyard::ops
