// LayerNorm: y = gamma · (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) + beta, in AccDType, rounded once.
//
// A row's bits depend on that row alone.  Borrows all memory; x and y may be the same rows (not merely overlap).
// CPU only so far (Unimplemented on a device).  Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct LayerNormDesc {
  double eps = 1e-5;
  TensorView gamma = {};  // [H] model dtype
  TensorView beta = {};   // [H] model dtype
};

absl::Status LayerNorm(const Stream& stream, const LayerNormDesc& desc,
                       const TensorView& x,   // [T, H] residual (AccDType of y's) or y's dtype; rows may be strided
                       const TensorView& y);  // [T, H] model dtype; rows may be strided

}  // namespace switchyard::ops
