// GPTQ: rounds a matrix so that its products with the inputs that it gets change least, not its elements.
//
// Columns are rounded one after the other; those that are left make up for what each rounding adds, as far as the
// inputs allow.  With H = R Rᵀ (gram.h) the error of a row is the sum over columns j of (Σ_{i <= j} R[i, j] e[i])²,
// where e = w - q.  So column j is rounded to the nearest of w[j] + Σ_{i < j} R[i, j] e[i] / R[j, j], which is what the
// original computes by the inverse of H.  A group's scale is chosen (ChooseScale) for what its columns would be if none
// of the group were rounded: the weights that the columns before it have left.
#pragma once

#include "absl/status/status.h"
#include "workers/quantize/group_codes.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::quantize {

// Fills in *to, of the values' shape and its own format.  A row's codes do not depend on the other rows, nor on
// threads. Errors: ops::Gemm's.
absl::Status RoundByFactor(const Stream& stream,
                           const TensorView& factor,  // [k, k] fp64, upper triangular
                           const TensorView& values,  // [n, k] fp32
                           QuantizedMatrix* to);

}  // namespace switchyard::quantize
