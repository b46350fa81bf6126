// Attention of chunks of prompts (and, in deterministic mode, of decodes' splits) on tensor cores.
//
// A block takes 128 rows of one kv head: row r of a tile of queries is query r / group, head r % group, so that the
// heads of a group share the keys they load; a tile of kCudaQueryTile = 128 queries so is `group` blocks.  8 warps of
// 16 rows walk tiles of 64 keys (attention_tile_cuda.h), which cp.async brings into one of two stages while the other
// is worked on. Counted on for D = 128: 96 KiB of shared memory and at most 128 registers, so two blocks of 256 threads
// on an SM with 32 KiB of keys and values in flight each.  D = 256: 192 KiB, one block.
//
// In deterministic mode the sums of each fixed split are joined as soon as it ends, in local memory: registers are
// full. A decode is a tile of one query: a block takes one of its splits and leaves its sums to the merging kernel.
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/attention_cuda.h"
#include "workers/ops/cuda/attention_decode_cuda.h"
#include "workers/ops/cuda/attention_tile_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / 32 * kMmaRows;  // of a block
constexpr int kKeys = 64;                        // of a tile
constexpr int kPart = 32;                        // of them a warp's registers hold scores of so many
constexpr int kTilesASplit = kFixedSplitKeys / kKeys;
static_assert(kRows == kCudaQueryTile, "a tile of queries is `group` blocks");
static_assert(kFixedSplitKeys % kKeys == 0);

// Shared memory, in elements of 16 bits.
template <int kDim>
struct Layout {
  static constexpr int kStages = kRows * kDim;     // behind the queries [kRows, kDim], which outputs replace later
  static constexpr int kValues = kKeys * kDim;     // within a stage, behind the keys
  static constexpr int kStage = 2 * kKeys * kDim;  // keys and values
  static constexpr int kEnd = kStages + 2 * kStage;
};

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
  return decode ? (group + kRows - 1) / kRows : group;
}

// Of a launch of decodes, or, if it has none, of the tiles.
__device__ Work FindWork(const CudaAttentionArgs& a, const DecodeLaunch& launch, int split) {
  Work work = {};
  const bool decode = launch.rows > 0;
  const int kv_heads = static_cast<int>(a.kv_heads);
  work.group = static_cast<int>(a.heads) / kv_heads;
  const int parts = NumRowParts(work.group, decode);
  work.item = static_cast<int>(blockIdx.x / (parts * kv_heads));
  work.first_row = static_cast<int>(blockIdx.x % parts) * kRows;
  work.kv_head = static_cast<int>(blockIdx.x / parts % kv_heads);
  work.sequence = decode ? a.sequences.decodes[launch.first_row + work.item] : a.sequences.tiles[2 * work.item];
  if (work.sequence < 0) return work;
  work.first_query = decode ? 0 : a.sequences.tiles[2 * work.item + 1];
  work.row_begin = a.sequences.row_begin[work.sequence];
  work.start_pos = a.sequences.start_pos[work.sequence];
  const int left = a.sequences.num_query[work.sequence] - work.first_query;
  const int rows = (left < kCudaQueryTile ? left : kCudaQueryTile) * work.group - work.first_row;
  if (rows <= 0) return work;
  work.rows = rows < kRows ? rows : kRows;
  work.first_key = FirstKey(work.start_pos + work.Query(0) + 1, WindowOf(a));
  work.end_key = work.start_pos + work.Query(work.rows - 1) + 1;
  const KeySplits splits(work.first_key, work.end_key, /*fixed=*/true);
  work.num_splits = launch.partials.splits > 1 ? splits.count() : 1;
  if (work.num_splits > 1) work.first_key = splits.begin(split), work.end_key = splits.end(split);
  if (split >= work.num_splits) work.rows = 0;
  return work;
}

// [kRows, D] of q into shared memory; rows and columns that do not exist become zero.
template <class Elem, int kDim>
__device__ __forceinline__ void LoadQueries(const CudaAttentionArgs& a, const Work& work, Elem* shared) {
  constexpr int kChunks = kDim / kChunk;
  const Elem* __restrict__ q = static_cast<const Elem*>(a.q);
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = row < work.rows && chunk * kChunk < a.head_dim;
    const int64_t at =
        valid ? static_cast<int64_t>(work.row_begin + work.Query(row)) * a.q_stride + work.Head(row) * a.head_dim : 0;
    CpAsync16(shared + Swizzled<kDim>(row, chunk), q + at + (valid ? chunk * kChunk : 0), valid);
  }
}

// One tile of keys and values into a stage.  offsets [kKeys]: where a key begins, or -1: zero.
template <class Elem, int kDim>
__device__ __forceinline__ void LoadKeys(const CudaAttentionArgs& a, const int64_t* offsets, Elem* stage) {
  constexpr int kChunks = kDim / kChunk;
  const Elem* __restrict__ k = static_cast<const Elem*>(a.k_cache);
  const Elem* __restrict__ v = static_cast<const Elem*>(a.v_cache);
#pragma unroll
  for (int i = 0; i < kKeys * kChunks / kThreads; ++i) {
    const int key = (threadIdx.x + i * kThreads) / kChunks, chunk = (threadIdx.x + i * kThreads) % kChunks;
    const int64_t offset = offsets[key];
    const bool valid = offset >= 0 && chunk * kChunk < a.head_dim;
    const int64_t from = valid ? offset + chunk * kChunk : 0;
    Elem* to = stage + Swizzled<kDim>(key, chunk);
    CpAsync16(to, k + from, valid);
    CpAsync16(to + Layout<kDim>::kValues, v + from, valid);
  }
}

// The ends of the keys that the lane's two rows see.  Rows past the last one have its end.
struct Sight {
  int end[2];
  int min_end, max_end;  // of the warp's rows
};

__device__ __forceinline__ Sight Look(const Work& work) {
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kMmaRows, lane = threadIdx.x % 32;
  const int last = work.rows - 1;
  const auto end = [&](int row) { return work.start_pos + work.Query(row < last ? row : last) + 1; };
  return {.end = {end(warp_row + lane / 4), end(warp_row + lane / 4 + 8)},
          .min_end = end(warp_row),
          .max_end = end(warp_row + kMmaRows - 1)};
}

// The warp's 16 rows, through their own part of the queries' shared memory, so that rows go out 16 bytes a lane.
template <class Elem, int kDim>
__device__ __forceinline__ void StoreRows(const CudaAttentionArgs& a, const Work& work, const RowState<kDim>& state,
                                          Elem* shared) {
  constexpr int kChunks = kDim / kChunk;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kMmaRows, lane = threadIdx.x % 32;
  const float inverse[2] = {1.0f / RowSum(state, 0), 1.0f / RowSum(state, 1)};
  __syncwarp();  // every lane has read its queries
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Elem* to = shared + Swizzled<kDim>(warp_row + lane / 4 + 8 * i, n) + lane % 4 * 2;
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
    *reinterpret_cast<uint4*>(to + chunk * kChunk) =
        *reinterpret_cast<const uint4*>(shared + Swizzled<kDim>(row, chunk));
  }
}

// What the splits before have.  Volatile: stays in memory.
template <int kDim>
struct Joined {
  volatile float out[kDim / 8][4], max[2], sum[2];
};

template <int kDim>
__device__ __forceinline__ void Clear(Joined<kDim>& joined) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    joined.max[i] = -INFINITY;
    joined.sum[i] = 0.0f;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      joined.out[n][2 * i] = 0.0f;
      joined.out[n][2 * i + 1] = 0.0f;
    }
  }
}

// Joins a split's sums with those before; the next one begins from nothing.
template <int kDim>
__device__ __forceinline__ void EndSplit(float scale_log2, RowState<kDim>& state, Joined<kDim>& joined) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Join join(joined.max[i], ScaledMax(state, i, scale_log2));
    joined.max[i] = join.max();
    joined.sum[i] = join(joined.sum[i], RowSum(state, i));
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; ++j) joined.out[n][j] = join(joined.out[n][j], state.out[n][j]);
    }
  }
  Clear(state);
}

template <int kDim>
__device__ __forceinline__ void TakeJoined(const Joined<kDim>& joined, RowState<kDim>& state) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.sum[i] = threadIdx.x % 4 == 0 ? joined.sum[i] : 0.0f;  // RowSum adds four lanes'
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; ++j) state.out[n][j] = joined.out[n][j];
    }
  }
}

// The sums of a decode's split, for the merging kernel.
template <int kDim>
__device__ __forceinline__ void LeaveSplit(const CudaAttentionArgs& a, const Work& work, int split, float scale_log2,
                                           const RowState<kDim>& state, const DecodeLaunch& launch) {
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kMmaRows, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp_row + lane / 4 + 8 * i;
    const float sum = RowSum(state, i);
    if (row >= work.rows) continue;
    const int64_t slot = launch.partials.Slot(work.item, work.Head(row), split);
    if (lane % 4 == 0)
      *launch.partials.Sums(launch.workspace, slot) = make_float2(ScaledMax(state, i, scale_log2), sum);
    float* values = launch.partials.Values(launch.workspace, slot) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (8 * n >= a.head_dim) break;
      *reinterpret_cast<float2*>(values + 8 * n) = make_float2(state.out[n][2 * i], state.out[n][2 * i + 1]);
    }
  }
}

// By all threads of the block.  offsets [2, kKeys]: shared.
template <class Elem, int kDim, bool kFixedSplits>
__device__ __forceinline__ void AttendBlock(const CudaAttentionArgs& a, const Work& work, int split, float scale_log2,
                                            const DecodeLaunch& launch, int64_t (*offsets)[kKeys]) {
  Elem* shared = DynamicShared<Elem>();
  const int first_tile = work.first_key / kKeys, end_tile = (work.end_key + kKeys - 1) / kKeys;
  // Keys that no row sees may be unwritten, or may belong to another sequence by now.
  const auto offset_of = [&](int key) -> int64_t {
    const bool seen = key >= work.first_key && key < work.end_key;
    return seen ? CacheRow(a, work.sequence, work.kv_head, key) * a.head_dim : int64_t{-1};
  };
  const auto stage_of = [&](int tile) { return shared + Layout<kDim>::kStages + tile % 2 * Layout<kDim>::kStage; };

  const int tid = static_cast<int>(threadIdx.x), warp_row = tid / 32 * kMmaRows;
  if (tid < 2 * kKeys) {
    const int tile = first_tile + tid / kKeys;
    offsets[tile % 2][tid % kKeys] = offset_of(tile * kKeys + tid % kKeys);
  }
  LoadQueries<Elem, kDim>(a, work, shared);
  __syncthreads();
  LoadKeys<Elem, kDim>(a, offsets[first_tile % 2], stage_of(first_tile));
  CpAsyncCommit();

  const Sight sight = Look(work);
  const int window = WindowOf(a);
  const bool has_rows = warp_row < work.rows;
  const auto query = [&](int step, uint32_t(&fragment)[4]) { LoadRows<Elem, kDim>(shared, warp_row, step, fragment); };
  RowState<kDim> state;
  Clear(state);
  Joined<kDim> joined;
  if constexpr (kFixedSplits) Clear(joined);
  for (int tile = first_tile; tile < end_tile; ++tile) {
    CpAsyncWait<0>();
    __syncthreads();  // this tile is there for all warps; all are done with the one before and with its offsets
    if (tile + 1 < end_tile) LoadKeys<Elem, kDim>(a, offsets[(tile + 1) % 2], stage_of(tile + 1));
    CpAsyncCommit();
    if (tid < kKeys) offsets[tile % 2][tid] = offset_of((tile + 2) * kKeys + tid);
    if (!has_rows) continue;
#pragma unroll 1
    for (int part = 0; part < kKeys; part += kPart) {
      const int begin = tile * kKeys + part;
      if (begin >= sight.max_end || begin + kPart <= sight.min_end - window) continue;
      const Elem* keys = stage_of(tile) + part * kDim;
      float scores[kPart / 8][4];
      uint32_t p[kPart / 16][4];
      Scores<Elem, kDim, kPart>(query, keys, scores);
      if (begin < sight.max_end - window || begin + kPart > sight.min_end) {
        HideKeys(begin, sight.end, window, scores);
      }
      Soften<Elem, kDim, kPart>(scores, scale_log2, state, p);
      AddValues<Elem, kDim, kPart>(p, keys + Layout<kDim>::kValues, state);
    }
    if constexpr (kFixedSplits) {
      if ((tile + 1) % kTilesASplit == 0 && tile + 1 < end_tile) EndSplit(scale_log2, state, joined);
    }
  }
  if (!has_rows) return;
  if constexpr (kFixedSplits) {
    if (work.num_splits > 1) {
      LeaveSplit(a, work, split, scale_log2, state, launch);
      return;
    }
    if (first_tile / kTilesASplit != (end_tile - 1) / kTilesASplit) {
      EndSplit(scale_log2, state, joined);
      TakeJoined(joined, state);
    }
  }
  StoreRows<Elem, kDim>(a, work, state, shared);
}

// Blocks (tile of queries or decode, kv head, part of the rows) and, of decodes, splits, which they take in turns.
template <class Elem, int kDim, bool kFixedSplits>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    PrefillKernel(const CudaAttentionArgs a, const float scale_log2, const DecodeLaunch launch) {
  __shared__ int64_t offsets[2][kKeys];
  __shared__ Work work;
  WaitForPrecedingKernel();
  LaunchDependents();
  for (int split = static_cast<int>(blockIdx.y);; split += static_cast<int>(gridDim.y)) {
    if (threadIdx.x == 0) work = FindWork(a, launch, split);
    __syncthreads();
    if (work.rows == 0) return;
    AttendBlock<Elem, kDim, kFixedSplits>(a, work, split, scale_log2, launch, offsets);
    if (!kFixedSplits) return;
    __syncthreads();  // all are done with the shared memory
  }
}

int GroupOf(const CudaAttentionArgs& args) { return static_cast<int>(args.heads / args.kv_heads); }

template <class Elem, int kDim>
int LaunchPrefill(const CudaCall& call, const CudaAttentionArgs& args, dim3 grid, const DecodeLaunch& launch) {
  const LaunchConfig config = ConfigOf(call, grid, kThreads, Layout<kDim>::kEnd * int64_t{sizeof(Elem)});
  const auto kernel = call.deterministic ? PrefillKernel<Elem, kDim, true> : PrefillKernel<Elem, kDim, false>;
  return Launch(config, kernel, args, static_cast<float>(args.scale * kLog2E), launch);
}

}  // namespace

int AttentionPrefill(const CudaCall& call, const CudaAttentionArgs& args) {
  if (args.sequences.num_tiles == 0) return 0;
  const int64_t blocks = args.sequences.num_tiles * args.kv_heads * NumRowParts(GroupOf(args), /*decode=*/false);
  return VisitTile(
      args, [&]<class Elem, int kDim>() -> int { return LaunchPrefill<Elem, kDim>(call, args, Grid(blocks), {}); });
}

int AttentionDecodeSplits(const CudaCall& call, const CudaAttentionArgs& args, const DecodeLaunch& launch) {
  const int64_t blocks = launch.rows * args.kv_heads * NumRowParts(GroupOf(args), /*decode=*/true);
  const int split_blocks = FixedSplitBlocks(static_cast<int>(launch.partials.splits), blocks, call.num_sms);
  return VisitTile(args, [&]<class Elem, int kDim>() -> int {
    return LaunchPrefill<Elem, kDim>(call, args, Grid(blocks, split_blocks), launch);
  });
}

}  // namespace switchyard::ops::cuda
