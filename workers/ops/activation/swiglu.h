// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)), from both products' sums.  In AccDType, rounded once.  (The product
// of expert_ffn.h applies it by itself; this is for sums to which something has been added since.)
//
// A row's bits depend on that row alone.  Borrows all memory.  CPU only so far (Unimplemented on a device).
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status SwiGlu(const Stream& stream,
                    const TensorView& sums,  // [T, 2F] model dtype: gate, then up; rows may be strided
                    const TensorView& y);    // [T, F] model dtype; rows may be strided

}  // namespace switchyard::ops
