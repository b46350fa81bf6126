// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)): in AccDType, rounded once.  For dense MLPs and wherever the GEMM's
// fused form does not apply.
//
// gate and up are usually the two halves of one fused [T, 2F] row (TensorView::Columns).  y may be gate or up itself.
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

absl::Status SwiGlu(const Stream& stream,
                    const TensorView& gate,  // [T, F] model dtype; rows may be strided
                    const TensorView& up,    // [T, F] model dtype; rows may be strided
                    const TensorView& y);    // [T, F] model dtype; rows may be strided

}  // namespace switchyard
