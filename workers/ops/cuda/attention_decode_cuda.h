// How a decode's keys are cut into splits, and the places of the splits' partial results in the workspace.
//
// Pure; for the launcher, the kernels and their test.  A row's splits are a function of the number of its own keys, so
// it is batch-invariant; the grid's bound on them is a function of the bound on keys.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace switchyard::ops::cuda {

inline constexpr int kMinSplitKeys = 128;  // a smaller split costs more time than it hides
inline constexpr int kMaxSplits = 16;  // 4 kv heads x 16 splits: 64 blocks at batch 1, each with its loads in flight
inline constexpr int kSplitStep = 64;  // keys that a block takes at a time

// Keys of each split but the last, for a row that sees `keys` keys.
__host__ __device__ inline int SplitKeys(int keys) {
  const int even = (keys + kMaxSplits - 1) / kMaxSplits;
  const int whole = (even + kSplitStep - 1) / kSplitStep * kSplitStep;
  return whole < kMinSplitKeys ? kMinSplitKeys : whole;
}
__host__ __device__ inline int NumSplits(int keys) { return (keys + SplitKeys(keys) - 1) / SplitKeys(keys); }

// The most splits of a row with up to max_keys keys.
__host__ __device__ inline int MaxSplits(int64_t max_keys) {
  const int64_t splits = (max_keys + kMinSplitKeys - 1) / kMinSplitKeys;
  return static_cast<int>(splits < 1 ? 1 : splits < kMaxSplits ? splits : kMaxSplits);
}

// Partial results of `rows` decodes: slot (row, head, split) of rows * heads * splits.
struct PartialLayout {
  int64_t heads, splits, dim;
  int64_t values_bytes, bytes;  // values: [slots, dim] fp32; behind them, for each slot: max, sum (fp32)

  __host__ __device__ PartialLayout(int64_t rows, int64_t num_heads, int64_t num_splits, int64_t head_dim)
      : heads(num_heads), splits(num_splits), dim(head_dim) {
    values_bytes = rows * heads * splits * dim * 4;
    bytes = values_bytes + rows * heads * splits * 8;
  }
  __host__ __device__ int64_t Slot(int64_t row, int64_t head, int64_t split) const {
    return (row * heads + head) * splits + split;
  }
  // value of a slot's 0-th dimension
  __host__ __device__ float* Values(void* workspace, int64_t slot) const {
    return static_cast<float*>(workspace) + slot * dim;
  }
  __host__ __device__ float2* Sums(void* workspace, int64_t slot) const {
    return reinterpret_cast<float2*>(static_cast<char*>(workspace) + values_bytes) + slot;
  }
};

}  // namespace switchyard::ops::cuda
