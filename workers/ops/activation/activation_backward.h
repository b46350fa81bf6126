// The way back through a feed-forward's activation (../activation.h), from what ExpertFfn kept in `sums`:
// SwiGluBackward for SwiGLU; for GELU dsums = dhidden · gelu'(sums), in AccDType, rounded once.
//
// A row's bits depend on that row alone.  Borrows all memory.  CPU only so far.
// Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/ops/activation/activation.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status ActivationBackward(const Stream& stream, Activation activation,
                                const TensorView& sums,     // [T, SumsWidth] model dtype; rows may be strided
                                const TensorView& dhidden,  // [T, F] model dtype; rows may be strided
                                const TensorView& dsums);   // [T, SumsWidth] likewise; may be sums itself

}  // namespace switchyard::ops
