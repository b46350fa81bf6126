// The checked argument of weight_gradient.cc's CPU loop, weight_gradient_cpu.cc.  Internal to workers/ops.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// gradients[e] += dyᵀ · x over rows [offsets[e], offsets[e + 1]); fields as in weight_gradient.h.
struct WeightGradientJob {
  absl::string_view op;  // for messages
  TensorView dy, x;
  absl::Span<const TensorView> gradients;  // [El]
  IntView offsets;                         // [El + 1]
  IntView x_rows = {};
  Isa isa = Isa::kScalar;
};

// REQUIRES: checked.
void RunWeightGradientOnCpu(const Stream& stream, const WeightGradientJob& job);

}  // namespace switchyard::ops
