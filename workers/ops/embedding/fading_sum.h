// Adds to each row a fading mean of the rows before it in its text; both are columns of one input:
//   sum_t = own_t + m_t,  m_t = o_t + kept (m_{t-1} - o_t);  m_t = o_t in the first row of a text
// and max(0, sum_t) for the last columns: a hidden layer's units.
//
// On the CPU the mean includes all rows from the text's first one on, single-threaded; on a device it leaves out rows
// with weights below 1e-6.  So a device's rows differ by that and by rounding.  Errors (InvalidArgument): shapes or
// dtypes that do not fit, kept outside [0, 1), rectified outside [0, E].
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct FadingSumDesc {
  double kept = 0;
  int64_t rectified = 0;  // columns, the last ones
};

absl::Status AddFadingMean(const Stream& stream, const FadingSumDesc& desc,
                           const TensorView& both,  // [T, 2E] fp32 or fp64: own, then o
                           const IntView& begins,   // [T]: not 0 where a row is the first of its text
                           const TensorView& sum);  // [T, E] as both

}  // namespace switchyard::ops
