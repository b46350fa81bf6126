// Embeddings: rows of a table, widened into the residual stream, or added to it (learned positions).
//
// Borrows all memory.  Errors (InvalidArgument): shapes or dtypes that do not fit; a token outside [0, V), with its
// row.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status Embed(const Stream& stream,
                   const TensorView& table,      // [V, H] model dtype
                   const IntView& tokens,        // [T]
                   const TensorView& residual);  // [T, H] AccDType(table's)

// residual[t] += table[rows[t]].  CPU only so far (Unimplemented on a device).
absl::Status AddEmbedding(const Stream& stream,
                          const TensorView& table,      // [P, H] model dtype
                          const IntView& rows,          // [T]
                          const TensorView& residual);  // [T, H] AccDType(table's)

}  // namespace switchyard::ops
