// Attention of chunks of prompts (and, in deterministic mode, of decodes' splits) on tensor cores.
//
// The 8 warps of a block (attention_block_cuda.h) walk tiles of 64 keys (attention_tile_cuda.h), which cp.async brings
// into one of two stages while the other is worked on.  On a Hopper chunks go to attention_wgmma_cuda.cu, but in
// deterministic mode and for D over 128.  Counted on for D = 128: 96 KiB of shared memory and at most 128 registers, so
// two blocks of 256 threads on an SM with 32 KiB of keys and values in flight each.  D = 256: 192 KiB, one block.
//
// In deterministic mode the sums of each fixed split are joined as soon as it ends, in local memory: registers are
// full. A decode is a tile of one query: a block takes one of its splits and leaves its sums to the merging kernel.
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/attention_block_cuda.h"
#include "workers/ops/cuda/attention_cuda.h"
#include "workers/ops/cuda/attention_decode_cuda.h"
#include "workers/ops/cuda/attention_tile_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kKeys = 64;  // of a tile
constexpr int kPart = 32;  // of them a warp's registers hold scores of so many
constexpr int kTilesASplit = kFixedSplitKeys / kKeys;
static_assert(kFixedSplitKeys % kKeys == 0);

// Shared memory, in elements of 16 bits.
template <int kDim>
struct Layout {
  static constexpr int kStages = kBlockRows * kDim;  // behind the queries, which outputs replace later
  static constexpr int kValues = kKeys * kDim;       // within a stage, behind the keys
  static constexpr int kStage = 2 * kKeys * kDim;    // keys and values
  static constexpr int kEnd = kStages + 2 * kStage;

  __device__ static constexpr int At(int row, int chunk) { return Swizzled<kDim>(row, chunk); }
};

// One tile of keys and values into a stage.  offsets [kKeys]: where a key begins, or -1: zero.
template <class Elem, int kDim>
__device__ __forceinline__ void LoadKeys(const CudaAttentionArgs& a, const int64_t* offsets, Elem* stage) {
  constexpr int kChunks = kDim / kChunk;
  const Elem* __restrict__ k = static_cast<const Elem*>(a.k_cache);
  const Elem* __restrict__ v = static_cast<const Elem*>(a.v_cache);
#pragma unroll
  for (int i = 0; i < kKeys * kChunks / kAttentionThreads; ++i) {
    const int key = (threadIdx.x + i * kAttentionThreads) / kChunks,
              chunk = (threadIdx.x + i * kAttentionThreads) % kChunks;
    const int64_t offset = offsets[key];
    const bool valid = offset >= 0 && chunk * kChunk < a.head_dim;
    const int64_t from = valid ? offset + chunk * kChunk : 0;
    Elem* to = stage + Swizzled<kDim>(key, chunk);
    CpAsync16(to, k + from, valid);
    CpAsync16(to + Layout<kDim>::kValues, v + from, valid);
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
__device__ __forceinline__ void TakeJoined(const Joined<kDim>& joined, RowState<kDim>& state, float (&max)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    max[i] = joined.max[i];
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
  LoadQueries<Elem, kDim, Layout<kDim>>(a, work, shared);
  __syncthreads();
  LoadKeys<Elem, kDim>(a, offsets[first_tile % 2], stage_of(first_tile));
  CpAsyncCommit();

  const Sight sight = Look<kMmaRows>(work);
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
  float max[2] = {ScaledMax(state, 0, scale_log2), ScaledMax(state, 1, scale_log2)};
  if constexpr (kFixedSplits) {
    if (work.num_splits > 1) {
      LeaveSplit(a, work, split, scale_log2, state, launch);
      return;
    }
    if (first_tile / kTilesASplit != (end_tile - 1) / kTilesASplit) {
      EndSplit(scale_log2, state, joined);
      TakeJoined(joined, state, max);
    }
  }
  StoreRows<Elem, kDim, Layout<kDim>>(a, work, max, state, shared);
}

// Blocks (tile of queries or decode, kv head, part of the rows) and, of decodes, splits, which they take in turns.
template <class Elem, int kDim, bool kFixedSplits>
__global__ void __launch_bounds__(kAttentionThreads, kDim <= 128 ? 2 : 1)
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
  const LaunchConfig config = ConfigOf(call, grid, kAttentionThreads, Layout<kDim>::kEnd * int64_t{sizeof(Elem)});
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
