// The backward pass of PagedAttention (attention.h) over whole sequences, as in training: they begin at position 0, and
// all of their keys are rows of this batch.
//
// Probabilities are computed again from q and k, tile by tile, so nothing of size [S, S] is kept.  All sums are in
// AccDType and rounded once.  dk and dv of a kv head add its query heads in order, and within a head the queries in
// rising tiles of 64, so bits depend on the sequence alone.  Parallel over (sequence, kv head): with fewer pairs than
// threads, some threads are idle.  Blocks until done.  Borrows all memory.  CPU only so far.
// Dropout is that of the forward pass: of probabilities and of their gradients alike.
// Does not do: a cached prefix, attention sinks.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/dropout/dropout.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct AttentionBackwardDesc {
  int64_t num_heads = 0;     // N; a multiple of Nkv
  int64_t num_kv_heads = 0;  // Nkv
  int64_t head_dim = 0;      // D <= kMaxHeadDim
  double scale = 1.0;        // as in AttentionDesc
  int32_t window = 0;        // as in AttentionDesc
  NoiseDesc dropout = {};    // as in AttentionDesc, with the same keys
};

// Rows [first_row, first_row + num_rows) of the batch, at positions 0, 1, …
struct WholeSequence {
  int32_t first_row = 0;
  int32_t num_rows = 0;
};

// Writes dqkv of the sequences' rows; other rows stay as they are.  Errors (InvalidArgument): shapes or dtypes that do
// not fit, heads that do not divide, a sequence outside the batch or overlapping another.
absl::Status AttentionBackward(const Stream& stream, const AttentionBackwardDesc& desc,
                               absl::Span<const WholeSequence> sequences,  // in rising order of rows
                               const TensorView& qkv,        // [T, (N + 2 Nkv) * D] model dtype, prepared (qkv.h)
                               const TensorView& attended,   // [T, N * D] model dtype: attention's output
                               const TensorView& dattended,  // [T, N * D] model dtype
                               const TensorView& dqkv);  // [T, (N + 2 Nkv) * D] model dtype, not overlapping the others

}  // namespace switchyard::ops
