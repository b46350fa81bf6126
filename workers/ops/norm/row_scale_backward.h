// The backward pass of y[i] = weight[i] * x[i], a scale of each row: the router's weight of the pair scales an expert's
// hidden rows, which is the same as scaling the output of the next product.
//
//   dweight[i] = Σ_f dy[i, f] · x[i, f]     dx[i] = weight[i] · dy[i]     y[i] = weight[i] · x[i]
//
// In AccDType, rounded once; a row is summed in one order that depends on its width alone.  y is computed again because
// the next product's weight gradient needs it.  CPU only so far (Unimplemented on a device).
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct RowScaleBackwardRows {
  TensorView x;        // [M, F] model dtype; rows may be strided, as all of these
  TensorView weight;   // [M, 1] AccDType
  TensorView dy;       // [M, F] model dtype: in dy, out dx
  TensorView y;        // [M, F] model dtype: out; may be x
  TensorView dweight;  // [M, 1] AccDType: out
};

absl::Status RowScaleBackward(const Stream& stream, const RowScaleBackwardRows& rows);

}  // namespace switchyard::ops
