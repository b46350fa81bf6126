// RMSNorm, in the order of HuggingFace's Llama kind: y = gamma * round(x / sqrt(mean(x²) + eps)), where round() goes to
// the model's dtype before the product, and the product is rounded again; or, as gpt-oss has it, without the first
// rounding (rounds_once).
//
// A row's bits depend on that row alone.  Borrows all memory; x and y may be the same rows (not merely overlap).
// Errors (InvalidArgument): shapes or dtypes that do not fit.
// Does not do: LayerNorm.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct RmsNormDesc {
  double eps = 1e-6;
  int64_t head_dim = 0;  // 0: one norm over the whole row; > 0: one over each so many elements (q_norm, k_norm)
  bool rounds_once = false;
};

// width = head_dim, or H if that is 0; H is a multiple of it.
absl::Status RmsNorm(const Stream& stream, const RmsNormDesc& desc,
                     const TensorView& x,      // [T, H] residual (AccDType of y's) or y's dtype; rows may be strided
                     const TensorView& gamma,  // [width], y's dtype
                     const TensorView& y);     // [T, H] model dtype; rows may be strided

}  // namespace switchyard::ops
