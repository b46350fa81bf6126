// How a decode's keys are cut into splits, and the places of the splits' partial results in the workspace.
//
// Pure; for the launchers, the kernels and their test.  Two rules, both batch-invariant:
//   even splits:  a function of the number of the row's keys; few, so that merging is cheap.
//   fixed splits: deterministic mode's.  Keys are cut at multiples of kFixedSplitKeys in absolute position, alike for
//                 all rows, so that a block of a prompt's rows can sum up by the same splits as a decode does.
// The grid's bound on splits is a function of the bound on keys.
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

// The most splits of a row with up to max_keys keys.
__host__ __device__ inline int MaxSplits(int64_t max_keys) {
  const int64_t splits = (max_keys + kMinSplitKeys - 1) / kMinSplitKeys;
  return static_cast<int>(splits < 1 ? 1 : splits < kMaxSplits ? splits : kMaxSplits);
}

// With 4 kv heads 64 splits, so 256 blocks, of a sequence of 32 Ki keys.  A prompt's block joins its sums once a split,
// which costs some 8 % of its time (64 KiB read and written beside 512 products of tensor cores a warp).
inline constexpr int kFixedSplitKeys = 512;

// As MaxSplits, for fixed splits; window 0: none.
__host__ __device__ inline int MaxFixedSplits(int64_t max_keys, int64_t window) {
  const int64_t all = (max_keys + kFixedSplitKeys - 1) / kFixedSplitKeys;
  const int64_t seen = (window + kFixedSplitKeys - 2) / kFixedSplitKeys + 1;  // a window begins anywhere
  const int64_t splits = window > 0 && seen < all ? seen : all;
  return static_cast<int>(splits < 1 ? 1 : splits);
}
// Blocks over which the fixed splits of a row and kv head go in turns: those that fill the device, or as many as of
// even splits.  A graph's bound on keys is large, and most blocks of a grid that it sizes would find nothing.
__host__ __device__ inline int FixedSplitBlocks(int splits, int64_t rows_and_heads, int num_sms) {
  const int64_t filling = (4 * num_sms + rows_and_heads - 1) / rows_and_heads;
  const int64_t blocks = filling > kMaxSplits ? filling : kMaxSplits;
  return static_cast<int>(splits < blocks ? splits : blocks);
}

// The splits of a row that sees keys [first, end).  REQUIRES: first < end.
class KeySplits {
 public:
  __host__ __device__ KeySplits(int first, int end, bool fixed)
      : first_(first),
        end_(end),
        size_(fixed ? kFixedSplitKeys : SplitKeys(end - first)),
        origin_(fixed ? first / kFixedSplitKeys * kFixedSplitKeys : first) {}

  __host__ __device__ int count() const { return (end_ - origin_ + size_ - 1) / size_; }
  // Keys [begin(i), end(i)) of split i.
  __host__ __device__ int begin(int i) const { return i == 0 ? first_ : origin_ + i * size_; }
  __host__ __device__ int end(int i) const { return i + 1 < count() ? origin_ + (i + 1) * size_ : end_; }

 private:
  int first_, end_, size_, origin_;
};

// Partial results of `rows` decodes: slot (row, head, split) of rows * heads * splits.
struct PartialLayout {
  int64_t heads = 0, splits = 0, dim = 0;
  int64_t values_bytes = 0, bytes = 0;  // values: [slots, dim] fp32; behind them, for each slot: max, sum (fp32)

  PartialLayout() = default;
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

// The decodes of one launch: rows [first_row, first_row + rows) of sequences.decodes.  rows 0: none.
struct DecodeLaunch {
  int64_t first_row = 0, rows = 0;
  PartialLayout partials;
  void* workspace = nullptr;
};

}  // namespace switchyard::ops::cuda
