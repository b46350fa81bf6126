// The backward pass of LayerNorm (layer_norm.h): y = gamma * n + beta, n = (x - mean(x)) * r,
// r = 1 / sqrt(variance + eps):
//   dn = gamma · dy,   dx = r · (dn - mean(dn) - n · mean(dn · n)),   dgamma += Σ over rows of dy · n,   dbeta += Σ dy.
//
// In AccDType, rounded once.  A row of dx has bits that depend on that row alone; dgamma and dbeta are summed in the
// order of row_block_sums.h.  Borrows all memory.  CPU only so far.
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct LayerNormBackwardDesc {
  double eps = 1e-5;
  TensorView gamma = {};    // [H] model dtype
  bool accumulate = false;  // add to dx, which is then AccDType: the residual stream's gradient
  TensorView dgamma = {};   // [H] AccDType, contiguous, added to; raw() == nullptr: not wanted
  TensorView dbeta = {};    // likewise
};

// Each of x, dy and dx may be the model dtype (gamma's) or its AccDType; rows may be strided.
absl::Status LayerNormBackward(const Stream& stream, const LayerNormBackwardDesc& desc,
                               const TensorView& x,    // [T, H] the norm's input
                               const TensorView& dy,   // [T, H]
                               const TensorView& dx);  // [T, H]; may be dy's rows themselves unless it is added to

}  // namespace switchyard::ops
