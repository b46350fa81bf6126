// Clamps elements to [-limit, limit] in place (OLMoE's and DBRX's clip_qkv).  NaN stays NaN.
//
// Errors (InvalidArgument): limit not positive and finite; a dtype that is not floating.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status Clamp(const Stream& stream, double limit,
                   const TensorView& x);  // [T, H] model dtype; rows may be strided

}  // namespace switchyard::ops
