// The backward pass of RmsNorm (rms_norm.h): y = gamma * n, n = x * r, r = 1 / sqrt(mean(x²) + eps):
//   dn = gamma · dy,   dx = r · (dn - n · mean(dn · n)),   dgamma += Σ over rows (and heads) of dy · round(n).
// Rounding counts as the identity, so dx takes n unrounded; dgamma takes gamma's factor, round(n).
//
// In AccDType, rounded once.  A row of dx has bits that depend on that row alone; dgamma is summed in the order of
// row_block_sums.h.  Borrows all memory.  CPU only so far.
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct RmsNormBackwardDesc {
  double eps = 1e-6;        // as in RmsNormDesc
  int64_t head_dim = 0;     // as in RmsNormDesc
  bool accumulate = false;  // add to dx, which is then AccDType: the residual stream's gradient
  TensorView dgamma = {};   // [width] AccDType, contiguous, added to; raw() == nullptr: not wanted
};

// Each of x, dy and dx may be the model dtype (gamma's) or its AccDType; rows may be strided.
absl::Status RmsNormBackward(const Stream& stream, const RmsNormBackwardDesc& desc,
                             const TensorView& x,      // [T, H] the norm's input
                             const TensorView& gamma,  // [width]
                             const TensorView& dy,     // [T, H]
                             const TensorView& dx);    // [T, H]; may be dy's rows themselves unless it is added to

}  // namespace switchyard::ops
