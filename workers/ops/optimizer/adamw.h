// One step of AdamW over a range of parameters, as PyTorch's AdamW does it, and the norm that clips gradients:
//   g = gradient · gradient_scale;   p = p · (1 - lr · weight_decay);
//   m = m + (1 - beta1)(g - m);   v = beta2 · v + (1 - beta2) g²;
//   p = p - lr / (1 - beta1^step) · m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
//
// Each element is computed by itself, in the range's dtype: its bits depend neither on how parameters are cut into
// ranges nor on threads.  Borrows all memory.  CPU only so far.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct AdamWDesc {
  int64_t step = 1;  // the number of this step, from 1
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;    // decoupled
  double gradient_scale = 1;  // clipping: min(1, limit / norm)
};

// All of one shape, contiguous, fp32 or fp64: master parameters and moments are changed, gradients are read.
struct AdamWRangeViews {
  TensorView parameter, m, v, gradient;
};

// Errors (InvalidArgument): views that do not fit, step < 1, a beta outside [0, 1).
absl::Status AdamWStep(const Stream& stream, const AdamWDesc& desc, const AdamWRangeViews& range);

// Σ x², in double: blocks of kNormBlock elements, then block by block, so that bits depend on the number of elements
// alone.  Errors (InvalidArgument): x is not fp32 or fp64, or not contiguous.
inline constexpr int64_t kNormBlock = 4096;
absl::StatusOr<double> SumOfSquares(const Stream& stream, const TensorView& x);
// The sums of those blocks.  REQUIRES: as many `sums` as x has blocks.
absl::Status SumsOfSquares(const Stream& stream, const TensorView& x, absl::Span<double> sums);

}  // namespace switchyard::ops
