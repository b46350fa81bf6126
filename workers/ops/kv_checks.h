// Checks that WriteKv and PagedAttention share.  Internal to workers/ops.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/ops/kv_cache_view.h"

namespace switchyard {

// InvalidArgument unless both halves are contiguous [P, Nkv, block_size, D] of this dtype on the CPU.
absl::Status CheckKvCache(absl::string_view op, const KvCacheView& cache, DType dtype);
// InvalidArgument unless every sequence's rows are in the batch and its positions in blocks of the cache.
absl::Status CheckSequences(absl::string_view op, absl::Span<const SequenceRows> sequences, int64_t num_rows,
                            const KvCacheView& cache);

}  // namespace switchyard
