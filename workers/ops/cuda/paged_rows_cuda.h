// The sequence and position of a batch's row, the keys that it sees, and a position's place in the paged cache.  For
// the kernels of attention and of the cache's writes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops::cuda {

// A row of the batch.  sequence -1: of no sequence (padding, or a sequence that is not in this step).
struct RowPlace {
  int sequence = -1;
  int pos = 0;
};

__device__ __forceinline__ RowPlace FindRow(const CudaSequences& sequences, int64_t row) {
  RowPlace place;
  const int sequence = sequences.row_sequence[row];
  if (sequence < 0) return place;
  const int query = static_cast<int>(row) - sequences.row_begin[sequence];
  if (query < 0 || query >= sequences.num_query[sequence]) return place;
  place.sequence = sequence;
  place.pos = sequences.start_pos[sequence] + query;
  return place;
}

// The row of the cache, seen as [rows, D], with the key and value of a sequence's position and one kv head.  Args:
// CudaAttentionArgs or CudaKvArgs.
template <class Args>
__device__ __forceinline__ int64_t CacheRow(const Args& args, int sequence, int kv_head, int pos) {
  const int block_size = static_cast<int>(args.block_size), block = pos / block_size;
  const int64_t stored = args.sequences.block_table[sequence * args.sequences.table_stride + block];
  return (stored * args.kv_heads + kv_head) * block_size + (pos - block * block_size);
}

// The query at position pos sees the keys [end - window, end) with end = pos + 1.  With kNoWindow, all before end.
inline constexpr int kNoWindow = 0x7fffffff;
__device__ __forceinline__ int WindowOf(const CudaAttentionArgs& args) {
  return args.window > 0 && args.window < kNoWindow ? static_cast<int>(args.window) : kNoWindow;
}
__device__ __forceinline__ int FirstKey(int end, int window) { return end > window ? end - window : 0; }

}  // namespace switchyard::ops::cuda
