// What the kernels of attention of chunks on tensor cores share: the rows of a block, and their loads and stores.
//
// A block of kAttentionThreads threads takes 128 rows of one kv head: row r of a tile of queries is query r / group,
// head r % group, so that the heads of a group share the keys they load; a tile of kCudaQueryTile = 128 queries so is
// `group` blocks.  A warp has 16 of the rows.  Place::At(row, chunk): where a kernel keeps a row's chunk of 8 elements
// in shared memory, in elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/attention_decode_cuda.h"
#include "workers/ops/cuda/attention_tile_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kBlockRows = kAttentionThreads / 32 * kMmaRows;
static_assert(kBlockRows == kCudaQueryTile, "a tile of queries is `group` blocks");

// The rows of one block and their keys.  In shared memory: registers are for the softmax.
struct Work {
  int sequence, kv_head, group;
  int rows;         // 0: nothing to do
  int first_row;    // of the tile's rows
  int first_query;  // the tile's, from the sequence's first
  int row_begin, start_pos;
  int first_key, end_key;  // what any of the rows sees; of one split, if there are several blocks' of them
  int item, num_splits;    // of a decode: its number in the launch, and its splits; 1: they are this block's

  __device__ __forceinline__ int Query(int row) const { return first_query + (first_row + row) / group; }
  __device__ __forceinline__ int Head(int row) const { return kv_head * group + (first_row + row) % group; }
};

// Blocks for each tile of queries and kv head.
__host__ __device__ __forceinline__ int NumRowParts(int group, bool decode) {
  return decode ? (group + kBlockRows - 1) / kBlockRows : group;
}

// Of a launch of decodes, or, if it has none, of the tiles.  (The last tile first, which has the most keys, is slower
// on an H100: tests/bench/gpu/H100.md.)
__device__ inline Work FindWork(const CudaAttentionArgs& a, const DecodeLaunch& launch, int split) {
  Work work = {};
  const bool decode = launch.rows > 0;
  const int kv_heads = static_cast<int>(a.kv_heads);
  work.group = static_cast<int>(a.heads) / kv_heads;
  const int parts = NumRowParts(work.group, decode);
  const int block = static_cast<int>(blockIdx.x);
  work.item = block / (parts * kv_heads);
  work.first_row = block % parts * kBlockRows;
  work.kv_head = block / parts % kv_heads;
  work.sequence = decode ? a.sequences.decodes[launch.first_row + work.item] : a.sequences.tiles[2 * work.item];
  if (work.sequence < 0) return work;
  work.first_query = decode ? 0 : a.sequences.tiles[2 * work.item + 1];
  work.row_begin = a.sequences.row_begin[work.sequence];
  work.start_pos = a.sequences.start_pos[work.sequence];
  const int left = a.sequences.num_query[work.sequence] - work.first_query;
  const int rows = (left < kCudaQueryTile ? left : kCudaQueryTile) * work.group - work.first_row;
  if (rows <= 0) return work;
  work.rows = rows < kBlockRows ? rows : kBlockRows;
  work.first_key = FirstKey(work.start_pos + work.Query(0) + 1, WindowOf(a));
  work.end_key = work.start_pos + work.Query(work.rows - 1) + 1;
  const KeySplits splits(work.first_key, work.end_key, /*fixed=*/true);
  work.num_splits = launch.partials.splits > 1 ? splits.count() : 1;
  if (work.num_splits > 1) work.first_key = splits.begin(split), work.end_key = splits.end(split);
  if (split >= work.num_splits) work.rows = 0;
  return work;
}

// [kBlockRows, D] of q into shared memory; rows and columns that do not exist become zero.
template <class Elem, int kDim, class Place>
__device__ __forceinline__ void LoadQueries(const CudaAttentionArgs& a, const Work& work, Elem* shared) {
  constexpr int kChunks = kDim / kChunk;
  const Elem* __restrict__ q = static_cast<const Elem*>(a.q);
  for (int i = threadIdx.x; i < kBlockRows * kChunks; i += kAttentionThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = row < work.rows && chunk * kChunk < a.head_dim;
    const int64_t at =
        valid ? static_cast<int64_t>(work.row_begin + work.Query(row)) * a.q_stride + work.Head(row) * a.head_dim : 0;
    CpAsync16(shared + Place::At(row, chunk), q + at + (valid ? chunk * kChunk : 0), valid);
  }
}

// The ends of the keys that the lane's two rows see.  Rows past the last one have its end.
struct Sight {
  int end[2];
  int min_end, max_end;  // of the rows that are looked at together
};

// Of groups of kRows rows: a warp's 16, or a warpgroup's 64.
template <int kRows>
__device__ __forceinline__ Sight Look(const Work& work) {
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kMmaRows, lane = threadIdx.x % 32;
  const int first = warp_row / kRows * kRows, last = work.rows - 1;
  const auto end = [&](int row) { return work.start_pos + work.Query(row < last ? row : last) + 1; };
  return {.end = {end(warp_row + lane / 4), end(warp_row + lane / 4 + 8)},
          .min_end = end(first),
          .max_end = end(first + kRows - 1)};
}

// The warp's 16 rows, through their own part of the queries' shared memory, so that rows go out 16 bytes a lane.  max:
// the lane's two rows' (ScaledMax).
template <class Elem, int kDim, class Place>
__device__ __forceinline__ void StoreRows(const CudaAttentionArgs& a, const Work& work, const float (&max)[2],
                                          const RowState<kDim>& state, Elem* shared) {
  constexpr int kChunks = kDim / kChunk;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kMmaRows, lane = threadIdx.x % 32;
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = work.Head(warp_row + lane / 4 + 8 * i);  // also of rows past the last one there is such a head
    inverse[i] = 1.0f / WithSink(a, head, max[i], RowSum(state, i));
  }
  __syncwarp();  // every lane has read its queries
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Elem* to = shared + Place::At(warp_row + lane / 4 + 8 * i, n) + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(to) =
          PackPair<Elem>(state.out[n][2 * i] * inverse[i], state.out[n][2 * i + 1] * inverse[i]);
    }
  }
  __syncwarp();
  for (int i = lane; i < kMmaRows * kChunks; i += 32) {
    const int row = warp_row + i / kChunks, chunk = i % kChunks;
    if (row >= work.rows || chunk * kChunk >= a.head_dim) continue;
    Elem* to = static_cast<Elem*>(a.out) + static_cast<int64_t>(work.row_begin + work.Query(row)) * a.out_stride +
               work.Head(row) * a.head_dim;
    *reinterpret_cast<uint4*>(to + chunk * kChunk) = *reinterpret_cast<const uint4*>(shared + Place::At(row, chunk));
  }
}

}  // namespace switchyard::ops::cuda
