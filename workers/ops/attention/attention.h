// Causal attention over a paged KV cache, for a batch that mixes prefill chunks and decodes.
//
// out[i] = Σ_j softmax_j(scale · q[i]·k[j]) v[j] over the keys j that query i sees: j <= i, and with a window w > 0
// also i - w < j (w keys, its own included).  With sinks (gpt-oss) the softmax of head h has one more entry, the score
// sinks[h], which no value belongs to: it only adds to the denominator.  Query head h reads kv head h / (N / Nkv).  The
// keys of the step's own rows must already be in the cache (WriteKv).
//
// Batch invariance: a query row walks its keys in tiles of kAttentionKeyTile, at multiples of it in absolute position,
// in rising order, with one online softmax.  So its bits depend neither on how the prompt was chunked, nor on the
// cache's block size, other sequences or threads.  A tile that a row does not see is not touched for it.  (Keys and
// values must be finite: a NaN or Inf may also reach earlier rows of the same chunk.)  Softmax and sums
// are in AccDType.  With a bf16 cache and AVX512-BF16 or AMX, probabilities are rounded to bf16 before they meet v.
//
// With a cache in 8 bits (kv_format.h) a score is Σ q·number, times the key's scale, and a probability meets numbers of
// v after it was multiplied by their scale.
//
// With dropout (transformers' eager attention) out[i] = Σ_j m_ij softmax_j(...) v[j], m_ij = 0 or 1 / (1 - rate), drawn
// by the row's key, the head and j (dropout/counter_random.h).  On the CPU; probabilities are not rounded to bf16.
//
// Parallel over (sequence, kv head, query tile).  Borrows all memory; out may not overlap q.
// Does not do: 8 bits on a device, ALiBi, cross attention.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/ops/dropout/dropout.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr int kAttentionKeyTile = 64;
inline constexpr int64_t kMaxHeadDim = 256;

struct AttentionDesc {
  int64_t num_heads = 0;   // N; a multiple of the cache's Nkv
  double scale = 1.0;      // usually D^-0.5
  int32_t window = 0;      // 0 = none
  TensorView sinks = {};   // [N] AccDType, finite; rank 0: none
  NoiseDesc dropout = {};  // of probabilities, in training: their sum does not change, the values that they meet do
};

// Errors (InvalidArgument): shapes or dtypes that do not fit, D > kMaxHeadDim, rows outside the batch, a block table
// that is too short or names a block outside the cache.  Rows of `out` that no sequence names are left as they are.
absl::Status PagedAttention(const Stream& stream, const AttentionDesc& desc, const SequenceBatch& sequences,
                            const TensorView& q,       // [T, N*D] model dtype; rows may be strided
                            const KvCacheView& cache,  // of the model dtype, or in 8 bits
                            const TensorView& out);    // [T, N*D] model dtype; rows may be strided

}  // namespace switchyard::ops
