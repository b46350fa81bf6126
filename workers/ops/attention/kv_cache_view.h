// The paged KV cache of one layer as the attention ops see it, and each key's place in it.
//
// K and V are tensors [P, Nkv, block_size, D] of the model's dtype: a block holds block_size consecutive positions of
// one sequence, head by head, so one head's keys of a block are contiguous.  Position p of a sequence is in block
// block_table[p / block_size], row p % block_size.  In 8 bits (kv_format.h) they are bytes [P, Nkv, block_size, D + 4]:
// of each head in a block first the numbers [block_size, D], then the scales [block_size] fp32.
// Views only: the model's kv_cache owns the memory, the scheduler assigns blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/attention/kv_format.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline Shape KvCacheShape(int64_t num_blocks, int64_t num_kv_heads, int64_t block_size, int64_t head_dim,
                          KvFormat format = KvFormat::kPlain) {
  return {num_blocks, num_kv_heads, block_size, head_dim + (format == KvFormat::kPlain ? 0 : kKvScaleBytes)};
}

struct KvCacheView {
  TensorView k;  // [P, Nkv, block_size, D] model dtype, or [P, Nkv, block_size, D + 4] uint8; contiguous
  TensorView v;  // likewise
  KvFormat format = KvFormat::kPlain;

  int64_t num_blocks() const { return k.dim(0); }
  int64_t num_kv_heads() const { return k.dim(1); }
  int64_t block_size() const { return k.dim(2); }
  int64_t head_dim() const { return k.dim(3) - (format == KvFormat::kPlain ? 0 : kKvScaleBytes); }
};

// The rows of one sequence in a step: rows [row_begin, row_begin + num_query) of the batch are its positions
// [start_pos, start_pos + num_query).
struct SequenceRows {
  int64_t row_begin = 0;
  int32_t num_query = 0;                       // 0 is allowed: the sequence is skipped
  int32_t start_pos = 0;                       // also the number of its keys already in the cache
  absl::Span<const int32_t> block_table = {};  // covers at least start_pos + num_query positions; borrowed
  // Where a device keeps the table from step to step, -1: nowhere; and a number of the sequence that no other one there
  // has.  The table of such a sequence may only grow.
  int32_t slot = -1;
  uint64_t generation = 0;
};

struct CudaSequences;

// The sequences of a step as ops take them; for a device, also their copy in its memory (device_sequences.h).
struct SequenceBatch {
  SequenceBatch() = default;
  // Implicit: on the CPU a span or vector is a batch.
  SequenceBatch(absl::Span<const SequenceRows> rows) : rows(rows) {}                                  // NOLINT
  SequenceBatch(const std::vector<SequenceRows>& rows) : SequenceBatch(absl::MakeConstSpan(rows)) {}  // NOLINT
  explicit SequenceBatch(const CudaSequences& on_device) : on_device(&on_device) {}

  absl::Span<const SequenceRows> rows;       // on the CPU
  const CudaSequences* on_device = nullptr;  // borrowed
};

// Scatters the step's k and v rows into the cache.  No block may be written by two sequences of one call.
// Errors (InvalidArgument): shapes or dtypes that do not fit, rows outside the batch, a block table that is too short
// or names a block outside the cache.  Unimplemented: 8 bits of fp64, or on a device.
absl::Status WriteKv(const Stream& stream, const SequenceBatch& sequences,
                     const TensorView& k,  // [T, Nkv*D] model dtype; rows may be strided
                     const TensorView& v,  // [T, Nkv*D] model dtype; rows may be strided
                     const KvCacheView& cache);

}  // namespace switchyard::ops
