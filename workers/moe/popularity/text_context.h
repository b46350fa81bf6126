// The context of a text's rows as features: a mean of the rows so far, the nearest weighing most,
//   m_t = x_t + k (m_{t-1} - x_t),  k = 4/5;   m_t = x_t in the first row of a text that this pass has
// The next layer's attention will mix such rows into this one, which a map of the row alone (ridge_probe.h) cannot
// know (scheduler/popularity/README.md has the figures).
//
// The mean is linear, so a map of it is the mean of its maps (ops/fading_sum.h): serving keeps E numbers a text, not H.
// Free functions on the CPU.  Does not know rows of earlier passes: a chunk of a prompt begins anew, and a decoded row
// has no context.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

inline constexpr double kContextKept = 0.8;
inline constexpr int64_t kContextReach = 64;  // rows: 0.8^64 is below 1e-6

// [count, 2H] AccDType: of rows [first, first + count) of x the row and the mean, which reaches back at most
// kContextReach rows before `first`.
// begins [T]: not 0 where a row is the first of its text.  REQUIRES: x [T, H] floating, on the CPU; the rows are there.
Tensor WithContext(const TensorView& x, absl::Span<const uint8_t> begins, int64_t first, int64_t count);

// A fitted map [E, 2H + 1] of rows with context (own, mean, bias) as one of rows alone [2E, H + 1], the means' below,
// whose product AddFadingMean (ops/fading_sum.h) sums up.  REQUIRES: fp64, on the CPU.
Tensor StackedMap(const TensorView& fitted);

}  // namespace switchyard::moe
