// Checks that WriteKv and PagedAttention share.  Internal to workers/ops.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {

// InvalidArgument unless both halves are contiguous [P, Nkv, block_size, D] of this dtype, or bytes of 8 bits for it.
absl::Status CheckKvCache(const OpSite& at, const KvCacheView& cache, DType dtype);
// InvalidArgument unless every sequence's rows are in the batch and its positions in blocks of the cache.
absl::Status CheckSequences(const OpSite& at, absl::Span<const SequenceRows> sequences, int64_t num_rows,
                            const KvCacheView& cache);
// The same for an op's argument: on a device they were checked when they were copied there.
absl::Status CheckSequences(const OpSite& at, const SequenceBatch& sequences, int64_t num_rows,
                            const KvCacheView& cache);

// The arguments of the CUDA kernels that write k and v.
CudaKvArgs MakeCudaKvArgs(const CudaSequences& sequences, const TensorView& k, const TensorView& v,
                          const KvCacheView& cache);

}  // namespace switchyard::ops
