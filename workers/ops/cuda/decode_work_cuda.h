// Which keys of which row a block of attention_decode_cuda.cu reads, and for which heads.  Device code only.
#pragma once

#include <cuda_runtime.h>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/attention_decode_cuda.h"
#include "workers/ops/cuda/attention_tile_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"

namespace switchyard::ops::cuda {

// What one block reads: keys [begin, end) of a sequence for `heads` heads from first_head on.
struct DecodeWork {
  int sequence, kv_head, first_head, heads, begin, end, num_splits;
};

__device__ __forceinline__ int NumHeadParts(int group) { return (group + kMmaRows - 1) / kMmaRows; }

// The keys that the decode of `sequence` sees: [FirstKey, end).  End 0: no such row.
__device__ __forceinline__ int EndOfKeys(const CudaAttentionArgs& a, int sequence) {
  return sequence < 0 || a.sequences.num_query[sequence] < 1 ? 0 : a.sequences.start_pos[sequence] + 1;
}

// Block (split, kv head and part of its group, row).  False: nothing to do.
__device__ __forceinline__ bool FindWork(const CudaAttentionArgs& a, int sequence, DecodeWork* work) {
  const int end = EndOfKeys(a, sequence);
  if (end == 0) return false;
  const int group = static_cast<int>(a.heads / a.kv_heads), parts = NumHeadParts(group);
  const int part = static_cast<int>(blockIdx.y) % parts;
  work->sequence = sequence;
  work->kv_head = static_cast<int>(blockIdx.y) / parts;
  work->first_head = work->kv_head * group + part * kMmaRows;
  work->heads = group - part * kMmaRows < kMmaRows ? group - part * kMmaRows : kMmaRows;
  const int first = FirstKey(end, WindowOf(a)), split_keys = SplitKeys(end - first);
  work->num_splits = NumSplits(end - first);
  work->begin = first + static_cast<int>(blockIdx.x) * split_keys;
  work->end = end - work->begin < split_keys ? end : work->begin + split_keys;
  return static_cast<int>(blockIdx.x) < work->num_splits;
}

}  // namespace switchyard::ops::cuda
