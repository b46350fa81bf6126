// The backward pass of Embed (embedding.h): gradient[tokens[t]] += d[t], in the order of t for every row of the table.
//
// Threads share out columns, so bits do not depend on threads.  Borrows all memory.  CPU only so far.
// Errors (InvalidArgument): shapes or dtypes that do not fit; a token outside [0, V).
#pragma once

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status EmbedBackward(const Stream& stream,
                           const IntView& tokens,        // [T]
                           const TensorView& d,          // [T, H] fp32 or fp64: of the residual stream
                           const TensorView& gradient);  // [V, H] d's dtype

}  // namespace switchyard::ops
