// y = gelu(x): x · Φ(x), or with tanh: x · s(2u), s the sigmoid, u = √(2/π) · (x + 0.044715 x³), which is
// x/2 · (1 + tanh(u)).  In AccDType, rounded once.
//
// A row's bits depend on that row alone.  Borrows all memory; y may be x itself.  CPU only so far (Unimplemented on a
// device).  Errors (InvalidArgument): shapes or dtypes that do not fit.  REQUIRES: an activation that is not gated.
#pragma once

#include "absl/status/status.h"
#include "workers/ops/activation/activation.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status Gelu(const Stream& stream, Activation activation,
                  const TensorView& x,   // [T, F] model dtype; rows may be strided
                  const TensorView& y);  // [T, F] model dtype; rows may be strided

}  // namespace switchyard::ops
