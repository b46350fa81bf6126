// The backward pass of a feed-forward's activation (activation.h), from the `sums` that ExpertFfn kept: SwiGluBackward
// for SwiGLU; for GELU dsums = dhidden · gelu'(sums).
//
// In AccDType, rounded once.  A row's bits depend on that row alone.  Borrows all memory.  CPU only so far.
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

// Through hidden = silu(gate) * up, from the sums that GatedGemm kept (expert_ffn.h):
//   dgate = dhidden · up · s · (1 + gate · (1 - s)),   dup = dhidden · gate · s,   s = 1 / (1 + exp(-gate)).
absl::Status SwiGluBackward(const Stream& stream,
                            const TensorView& sums,     // [T, 2F] model dtype: gate, then up; rows may be strided
                            const TensorView& dhidden,  // [T, F] model dtype; rows may be strided
                            const TensorView& dsums);   // [T, 2F] model dtype; rows may be strided; may be sums itself

}  // namespace switchyard::ops
