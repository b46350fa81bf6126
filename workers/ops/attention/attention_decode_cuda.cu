// Attention of decodes, one query per sequence: bound by reading keys and values, so they are read once for all heads
// of a group, and a long context is read by several blocks.  In deterministic mode the first of the two kernels is
// AttentionDecodeSplits.
//
// A block takes one split of one row's keys for up to 16 query heads of one kv head (the rows of an mma).  Its 4 warps
// take 16 keys of every 64, each with a ring of stages of its own that cp.async fills, and so without a barrier
// between warps; at the end they are merged in the order of warps.  The splits of a row are merged by a second kernel
// in the order of splits; a row of one split needs no second.  The one that writes a row's outputs adds its sink
// (WithSink).  Counted on for D = 128: 96 KiB of shared memory (3 stages), so two blocks of 128 threads on an SM with
// 64 KiB of loads in flight each.  D = 64: 48 KiB, four blocks; D = 256: 192 KiB, one block with 128 KiB in flight.
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

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kKeys = 16;  // of a warp's tile
constexpr int kStages = 3;
static_assert(kWarps * kKeys == kSplitStep);

// Shared memory: each warp's stages [kKeys, kDim] of keys and as many values; at the end, in the same place, the warps'
// partial results.
template <int kDim>
struct Layout {
  static constexpr int kStage = 2 * kKeys * kDim;  // elements
  static constexpr int kValues = kKeys * kDim;
  static constexpr int kPitch = kDim + 8;  // fp32: rows g = 0 … 7 of a fragment in different banks
  static constexpr int kStagesBytes = kWarps * kStages * kStage * 2;
  static constexpr int kFoundBytes = kWarps * kMmaRows * (kPitch + 2) * 4;
  static constexpr int kBytes = kStagesBytes > kFoundBytes ? kStagesBytes : kFoundBytes;
};

// The work of one block: keys [begin, end) of a sequence for `heads` heads from first_head on.
struct DecodeWork {
  int sequence, kv_head, first_head, heads, begin, end, num_splits;
};

__host__ __device__ __forceinline__ int NumHeadParts(int group) { return (group + kMmaRows - 1) / kMmaRows; }

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
  const KeySplits splits(FirstKey(end, WindowOf(a)), end, /*fixed=*/false);
  const int split = static_cast<int>(blockIdx.x);
  work->num_splits = splits.count();
  work->begin = splits.begin(split);
  work->end = splits.end(split);
  return split < work->num_splits;
}

// One tile of 16 keys and values into a stage.  offset: of lanes 0 … 15, where key `lane` begins, or -1: zero.
template <class Elem, int kDim>
__device__ __forceinline__ void LoadKeys(const CudaAttentionArgs& a, int64_t offset, Elem* stage) {
  constexpr int kChunks = kDim / kChunk;
  const int lane = threadIdx.x % 32;
  const Elem* __restrict__ k = static_cast<const Elem*>(a.k_cache);
  const Elem* __restrict__ v = static_cast<const Elem*>(a.v_cache);
#pragma unroll
  for (int i = 0; i < kKeys * kChunks / 32; ++i) {
    const int key = (lane + 32 * i) / kChunks, chunk = (lane + 32 * i) % kChunks;
    const long long begin = __shfl_sync(kAllLanes, static_cast<long long>(offset), key);
    const bool valid = begin >= 0 && chunk * kChunk < a.head_dim;
    const int64_t from = valid ? begin + chunk * kChunk : 0;
    Elem* to = stage + Swizzled<kDim>(key, chunk);
    CpAsync16(to, k + from, valid);
    CpAsync16(to + Layout<kDim>::kValues, v + from, valid);
  }
}

// Q of the block's heads as A-fragments, straight from memory; heads and columns that do not exist are zero.
template <class Elem, int kDim>
__device__ __forceinline__ void LoadQuery(const CudaAttentionArgs& a, const DecodeWork& work,
                                          uint32_t (&q)[kDim / 16][4]) {
  const int lane = threadIdx.x % 32;
  const Elem* __restrict__ row =
      static_cast<const Elem*>(a.q) + a.sequences.row_begin[work.sequence] * a.q_stride + work.first_head * a.head_dim;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int head = lane / 4 + j % 2 * 8, d = 16 * step + lane % 4 * 2 + j / 2 * 8;
      q[step][j] =
          head < work.heads && d < a.head_dim ? *reinterpret_cast<const uint32_t*>(row + head * a.head_dim + d) : 0u;
    }
  }
}

// This warp's tiles of keys [begin, end), 64 keys apart.
template <class Elem, int kDim>
__device__ __forceinline__ void ReadKeys(const CudaAttentionArgs& a, const DecodeWork& work, float scale_log2,
                                         RowState<kDim>& state) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32;
  Elem* ring = DynamicShared<Elem>() + warp * kStages * Layout<kDim>::kStage;
  const int first = work.begin + warp * kKeys;
  const auto offset_of = [&](int tile) -> int64_t {
    const int key = first + tile * kSplitStep + lane % kKeys;
    return key < work.end ? CacheRow(a, work.sequence, work.kv_head, key) * a.head_dim : int64_t{-1};
  };
  const int tiles = work.end > first ? (work.end - first + kSplitStep - 1) / kSplitStep : 0;
#pragma unroll
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < tiles) LoadKeys<Elem, kDim>(a, offset_of(tile), ring + tile * Layout<kDim>::kStage);
    CpAsyncCommit();
  }
  int64_t next_offset = offset_of(kStages - 1);  // looked up a tile ahead of its load
  uint32_t q[kDim / 16][4];
  LoadQuery<Elem, kDim>(a, work, q);
  const auto query = [&](int step, uint32_t(&fragment)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) fragment[j] = q[step][j];
  };
  int stage = 0, free_stage = kStages - 1;
  for (int tile = 0; tile < tiles; ++tile) {
    CpAsyncWait<kStages - 2>();
    __syncwarp();  // this tile is there for all lanes; all are done with the one before
    if (tile + kStages - 1 < tiles) LoadKeys<Elem, kDim>(a, next_offset, ring + free_stage * Layout<kDim>::kStage);
    CpAsyncCommit();
    next_offset = offset_of(tile + kStages);
    const Elem* keys = ring + stage * Layout<kDim>::kStage;
    float scores[kKeys / 8][4];
    uint32_t p[1][4];
    Scores<Elem, kDim, kKeys>(query, keys, scores);
    const int begin = first + tile * kSplitStep;
    if (begin + kKeys > work.end) {
      const int end[2] = {work.end, work.end};
      HideKeys(begin, end, kNoWindow, scores);
    }
    Soften<Elem, kDim, kKeys>(scores, scale_log2, state, p);
    AddValues<Elem, kDim, kKeys>(p, keys + Layout<kDim>::kValues, state);
    free_stage = stage;
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
}

// The warps' partial results: values [kWarps, kMmaRows, kPitch], then (max · scale, sum) [kWarps, kMmaRows].
template <int kDim>
__device__ __forceinline__ float2* FoundSums() {
  return reinterpret_cast<float2*>(DynamicShared<float>() + kWarps * kMmaRows * Layout<kDim>::kPitch);
}

template <int kDim>
__device__ __forceinline__ void LeaveFound(const RowState<kDim>& state, float scale_log2) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int slot = warp * kMmaRows + lane / 4 + 8 * i;
    const float sum = RowSum(state, i);
    if (lane % 4 == 0) FoundSums<kDim>()[slot] = make_float2(state.max[i] * scale_log2, sum);
    float* values = DynamicShared<float>() + slot * Layout<kDim>::kPitch;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(values + 8 * n + lane % 4 * 2) =
          make_float2(state.out[n][2 * i], state.out[n][2 * i + 1]);
    }
  }
}

// Merges the warps in their order: into the workspace, or as the output if there is no other split.
template <class Elem, int kDim>
__device__ __forceinline__ void MergeWarps(const CudaAttentionArgs& a, const DecodeWork& work,
                                           const DecodeLaunch& launch) {
  const int dim = static_cast<int>(a.head_dim);
  Elem* out = static_cast<Elem*>(a.out) + a.sequences.row_begin[work.sequence] * a.out_stride;
  for (int i = threadIdx.x; i < work.heads * dim; i += kThreads) {
    const int head = i / dim, d = i % dim;
    float max = -INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) max = fmaxf(max, FoundSums<kDim>()[w * kMmaRows + head].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int slot = w * kMmaRows + head;
      const float2 found = FoundSums<kDim>()[slot];
      const float weight = Exp2(found.x - max);  // max is finite: the first warp has a key
      sum = fmaf(weight, found.y, sum);
      value = fmaf(weight, DynamicShared<float>()[slot * Layout<kDim>::kPitch + d], value);
    }
    if (work.num_splits == 1) {
      const float divisor = WithSink(a, work.first_head + head, max, sum);
      out[(work.first_head + head) * a.head_dim + d] = Narrow<Elem>(value / divisor);
      continue;
    }
    const int64_t slot = launch.partials.Slot(blockIdx.z, work.first_head + head, blockIdx.x);
    launch.partials.Values(launch.workspace, slot)[d] = value;
    if (d == 0) *launch.partials.Sums(launch.workspace, slot) = make_float2(max, sum);
  }
}

template <class Elem, int kDim>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const CudaAttentionArgs a, const float scale_log2, const DecodeLaunch launch) {
  WaitForPrecedingKernel();
  LaunchDependents();  // the merging kernel's blocks may start; they wait for the end of this one
  DecodeWork work;
  if (!FindWork(a, a.sequences.decodes[launch.first_row + blockIdx.z], &work)) return;
  RowState<kDim> state;
  Clear(state);
  ReadKeys<Elem, kDim>(a, work, scale_log2, state);
  CpAsyncWait<0>();
  __syncthreads();  // all are done with their stages
  LeaveFound<kDim>(state, scale_log2);
  __syncthreads();
  MergeWarps<Elem, kDim>(a, work, launch);
}

// Merges a row's splits in their order.  Block (heads, row), a warp per head, 4 dimensions a lane.
template <class Elem>
__global__ void __launch_bounds__(kThreads)
    MergeSplitsKernel(const CudaAttentionArgs a, const DecodeLaunch launch, const bool fixed) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const int sequence = a.sequences.decodes[launch.first_row + blockIdx.y];
  const int head = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), lane = threadIdx.x % 32;
  const int end = EndOfKeys(a, sequence);
  if (end == 0 || head >= a.heads) return;
  const int splits = KeySplits(FirstKey(end, WindowOf(a)), end, fixed).count();
  if (splits == 1) return;
  const int64_t slot = launch.partials.Slot(blockIdx.y, head, 0);
  const float2* sums = launch.partials.Sums(launch.workspace, slot);
  Elem* out = static_cast<Elem*>(a.out) + a.sequences.row_begin[sequence] * a.out_stride + head * a.head_dim;
  for (int d = 4 * lane; d < a.head_dim; d += 4 * 32) {
    float max = -INFINITY, sum = 0.0f;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float2 found = sums[s];
      const float4 part = *reinterpret_cast<const float4*>(launch.partials.Values(launch.workspace, slot + s) + d);
      const Join join(max, found.x);
      max = join.max();
      sum = join(sum, found.y);
      total.x = join(total.x, part.x);
      total.y = join(total.y, part.y);
      total.z = join(total.z, part.z);
      total.w = join(total.w, part.w);
    }
    const float inverse = 1.0f / WithSink(a, head, max, sum);
    *reinterpret_cast<uint2*>(out + d) = make_uint2(PackPair<Elem>(total.x * inverse, total.y * inverse),
                                                    PackPair<Elem>(total.z * inverse, total.w * inverse));
  }
}

template <class Elem, int kDim>
int Enqueue(const CudaCall& call, const CudaAttentionArgs& args, const DecodeLaunch& launch) {
  const int parts = NumHeadParts(static_cast<int>(args.heads / args.kv_heads));
  const int64_t splits = launch.partials.splits;
  const LaunchConfig decode =
      ConfigOf(call, Grid(splits, args.kv_heads * parts, launch.rows), kThreads, Layout<kDim>::kBytes);
  const int error = call.deterministic ? AttentionDecodeSplits(call, args, launch)
                                       : Launch(decode, DecodeKernel<Elem, kDim>, args,
                                                static_cast<float>(args.scale * kLog2E), launch);
  if (error != 0 || splits == 1) return error;
  return Launch(ConfigOf(call, Grid((args.heads + kWarps - 1) / kWarps, launch.rows), kThreads),
                MergeSplitsKernel<Elem>, args, launch, call.deterministic);
}

}  // namespace

int AttentionDecode(const CudaCall& call, const CudaAttentionArgs& args) {
  constexpr int64_t kMaxGridRows = 65535;  // blocks in y and z
  const int64_t all = args.sequences.max_keys, keys = args.window > 0 && args.window < all ? args.window : all;
  int splits = call.deterministic ? MaxFixedSplits(all, args.window) : MaxSplits(keys);
  // As many rows at a time as the workspace has room for.  Of fixed splits not even one row's may fit: then one block
  // takes them all, to the same sums.
  int64_t capacity = kCudaWorkspaceBytes / PartialLayout(1, args.heads, splits, args.head_dim).bytes;
  if (capacity == 0) splits = 1, capacity = kMaxGridRows;
  capacity = capacity < kMaxGridRows ? capacity : kMaxGridRows;
  for (int64_t row = 0; row < args.sequences.num_decodes; row += capacity) {
    const int64_t left = args.sequences.num_decodes - row, rows = left < capacity ? left : capacity;
    const DecodeLaunch launch = {.first_row = row,
                                 .rows = rows,
                                 .partials = PartialLayout(rows, args.heads, splits, args.head_dim),
                                 .workspace = call.workspace};
    const int error =
        VisitTile(args, [&]<class Elem, int kDim>() -> int { return Enqueue<Elem, kDim>(call, args, launch); });
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace switchyard::ops::cuda
