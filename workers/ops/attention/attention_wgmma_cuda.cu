// Attention of chunks of prompts by Hopper's wgmma, for bf16 and fp16 and D up to 128; not in deterministic mode, where
// a decode has to repeat a chunk's sums by mma.sync.
//
// What attention_prefill_cuda.cu does, with a warpgroup of 64 rows in place of warps of 16: those read every key from
// shared memory once per 16 rows, which takes longer than the products.  Scores take queries and keys from shared
// memory; the probabilities stay in registers, where wgmma takes them as they lie.  Tiles are panels of 64 columns, 128
// bytes a row, in the order of wgmma_cuda.h; V's rows are keys, which is the product's k, so its operand is one of
// columns.
//
// Two blocks an SM (128 registers; 96 KiB of shared memory for D = 128): while one's warps make weights of scores, the
// tensor cores work for the other.  One block with tiles of 128 keys is slower on an H100, also where the next tile's
// scores are multiplied beside this one's values (tests/bench/gpu/H100.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/attention_block_cuda.h"
#include "workers/ops/cuda/attention_cuda.h"
#include "workers/ops/cuda/attention_tile_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"
#include "workers/ops/cuda/wgmma_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kPanel = 64;      // columns of a panel
constexpr int kKeys = 64;       // of a tile

// [rows, kDim] as panels [kDim / 64][rows][64].
template <int kRows>
struct Panels {
  __device__ static constexpr int At(int row, int chunk) {
    return (chunk / 8 * kRows + row) * kPanel + ((chunk ^ row) & 7) * kChunk;
  }
};

// Shared memory, in elements of 16 bits.  It begins at a multiple of 1024 bytes.
template <int kDim>
struct Layout {
  static constexpr int kStages = kBlockRows * kDim;  // behind the queries, which outputs replace later
  static constexpr int kValues = kKeys * kDim;       // within a stage, behind the keys
  static constexpr int kStage = 2 * kKeys * kDim;
  static constexpr int kBytes = 2 * (kStages + 2 * kStage) + 1024 - 128;  // dynamic memory begins at multiples of 128
  static_assert(kStages * 2 % 1024 == 0 && kValues * 2 % 1024 == 0);
};

// scores = the warpgroup's queries by a tile's keys.
template <class Elem, int kDim>
__device__ __forceinline__ void Score(const Elem* queries, const Elem* keys, float (&scores)[kKeys / 8][4]) {
  const uint64_t a = MakeWgmmaDescriptor(queries), b = MakeWgmmaDescriptor(keys);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * 32;  // bytes
    const uint64_t query = AdvanceWgmmaDescriptor(a, panel * kBlockRows * kPanel * 2 + within);
    const uint64_t key = AdvanceWgmmaDescriptor(b, panel * kKeys * kPanel * 2 + within);
    WgmmaM64K16<Elem, kKeys>(scores, query, key, step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaKeep(scores);
}

// state.out += p by a tile's values.
template <class Elem, int kDim>
__device__ __forceinline__ void AddTile(const uint32_t (&p)[kKeys / 16][4], const Elem* values, RowState<kDim>& state) {
  const uint64_t columns = MakeWgmmaColumnDescriptor(values, kKeys * kPanel * 2);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    WgmmaRows<Elem>(state.out, p[step], AdvanceWgmmaDescriptor(columns, step * 16 * kPanel * 2), true);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaKeep(state.out);
}

// The rows of the cache that hold the keys of one thread's place in the tiles, a tile after the other.
class KeyRows {
 public:
  __device__ KeyRows(const CudaAttentionArgs& a, int key)
      : key_(key),
        block_(key / static_cast<int>(a.block_size)),
        within_(key % static_cast<int>(a.block_size)),
        step_blocks_(kKeys / static_cast<int>(a.block_size)),
        step_within_(kKeys % static_cast<int>(a.block_size)) {}

  // Of the cache seen as [rows, D]; -1: no row of the block sees the key.  It may be unwritten, or another sequence's.
  __device__ int Next(const CudaAttentionArgs& a, const Work& work) {
    int row = -1;
    if (key_ >= work.first_key && key_ < work.end_key) {
      const int stored = a.sequences.block_table[work.sequence * a.sequences.table_stride + block_];
      row = (stored * static_cast<int>(a.kv_heads) + work.kv_head) * static_cast<int>(a.block_size) + within_;
    }
    key_ += kKeys;
    block_ += step_blocks_;
    within_ += step_within_;
    if (within_ >= a.block_size) ++block_, within_ -= static_cast<int>(a.block_size);
    return row;
  }

 private:
  int key_, block_, within_;
  const int step_blocks_, step_within_;
};

// Brings tiles of keys and values to shared memory: a thread has one chunk of every kStep-th key.
template <class Elem, int kDim>
class KeyLoader {
 public:
  static constexpr int kChunks = kDim / kChunk, kStep = kAttentionThreads / kChunks, kLoads = kKeys / kStep;
  static_assert(kStep % 8 == 0 && kKeys % kStep == 0, "its keys' chunks lie a fixed number of bytes apart");

  __device__ explicit KeyLoader(const CudaAttentionArgs& a)
      : key_(threadIdx.x / kChunks),
        place_(Panels<kKeys>::At(threadIdx.x / kChunks, threadIdx.x % kChunks)),
        row_bytes_(static_cast<uint32_t>(a.head_dim) * 2),
        exists_(threadIdx.x % kChunks * kChunk < static_cast<uint32_t>(a.head_dim)),
        k_(static_cast<const char*>(a.k_cache) + (exists_ ? threadIdx.x % kChunks * 16 : 0)),
        v_(static_cast<const char*>(a.v_cache) + (exists_ ? threadIdx.x % kChunks * 16 : 0)) {}

  // rows [kKeys]: of KeyRows.
  __device__ __forceinline__ void Load(const int* rows, Elem* stage) const {
    int row[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) row[i] = rows[key_ + i * kStep];
    Elem* const first = stage + place_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool valid = row[i] >= 0 && exists_;
      const uint64_t from = static_cast<uint64_t>(static_cast<uint32_t>(valid ? row[i] : 0)) * row_bytes_;
      CpAsync16(first + i * kStep * kPanel, k_ + from, valid);
      CpAsync16(first + i * kStep * kPanel + kKeys * kDim, v_ + from, valid);
    }
  }

 private:
  const int key_, place_;
  const uint32_t row_bytes_;
  const bool exists_;
  const char *k_, *v_;
};

// By all threads of the block.  rows [2, kKeys]: shared.
template <class Elem, int kDim>
__device__ __forceinline__ void AttendBlock(const CudaAttentionArgs& a, const Work& work, float scale_log2,
                                            int (*rows)[kKeys]) {
  Elem* shared = DynamicShared<Elem>();
  shared += -SharedAddress(shared) % 1024 / 2;
  const int first_tile = work.first_key / kKeys, end_tile = (work.end_key + kKeys - 1) / kKeys;
  const auto stage_of = [&](int parity) { return shared + Layout<kDim>::kStages + parity * Layout<kDim>::kStage; };

  const int tid = static_cast<int>(threadIdx.x);
  KeyRows key_rows(a, first_tile * kKeys + tid);
  if (tid < kKeys) {
    rows[0][tid] = key_rows.Next(a, work);
    rows[1][tid] = key_rows.Next(a, work);
  }
  const KeyLoader<Elem, kDim> loader(a);
  LoadQueries<Elem, kDim, Panels<kBlockRows>>(a, work, shared);
  __syncthreads();
  loader.Load(rows[0], stage_of(0));
  CpAsyncCommit();

  const Sight sight = Look<kGroupRows>(work);
  const int window = WindowOf(a), group_row = __shfl_sync(kAllLanes, tid / 128, 0) * kGroupRows;
  const bool has_rows = group_row < work.rows;
  const Elem* queries = shared + group_row * kPanel;
  RowState<kDim> state;
  Clear(state);
  int parity = 0;
  for (int tile = first_tile; tile < end_tile; ++tile, parity ^= 1) {
    CpAsyncWait<0>();
    FenceProxyAsync();
    __syncthreads();  // this tile is there for all warps; all are done with the one before and with its rows
    if (tile + 1 < end_tile) loader.Load(rows[parity ^ 1], stage_of(parity ^ 1));
    CpAsyncCommit();
    if (tid < kKeys) rows[parity][tid] = key_rows.Next(a, work);
    const int begin = tile * kKeys;
    if (!has_rows || begin >= sight.max_end || begin + kKeys <= sight.min_end - window) continue;
    float scores[kKeys / 8][4], decay[2];
    uint32_t p[kKeys / 16][4];
    Score<Elem, kDim>(queries, stage_of(parity), scores);
    if (begin < sight.max_end - window || begin + kKeys > sight.min_end) HideKeys(begin, sight.end, window, scores);
    Weigh<Elem, kDim, kKeys, /*kSumRounded=*/false>(scores, scale_log2, state, p, decay);
    Rescale(decay, state);
    AddTile<Elem, kDim>(p, stage_of(parity) + Layout<kDim>::kValues, state);
  }
  __syncthreads();  // no warp's products read the queries, which outputs replace
  if (!has_rows) return;
  const float max[2] = {ScaledMax(state, 0, scale_log2), ScaledMax(state, 1, scale_log2)};
  StoreRows<Elem, kDim, Panels<kBlockRows>>(a, work, max, state, shared);
}

// Blocks (tile of queries, kv head, part of the rows).
template <class Elem, int kDim>
__global__ void __launch_bounds__(kWgmmaBuilt ? kAttentionThreads : 32, 2)
    PrefillWgmmaKernel(const CudaAttentionArgs a, const float scale_log2) {
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else {
    __shared__ int rows[2][kKeys];
    __shared__ Work work;
    WaitForPrecedingKernel();
    LaunchDependents();
    if (threadIdx.x == 0) work = FindWork(a, {}, 0);
    __syncthreads();
    if (work.rows > 0) AttendBlock<Elem, kDim>(a, work, scale_log2, rows);
  }
}

template <class Elem, int kDim>
int LaunchKernel(const CudaCall& call, const CudaAttentionArgs& args, int64_t blocks) {
  const LaunchConfig config = ConfigOf(call, Grid(blocks), kAttentionThreads, Layout<kDim>::kBytes);
  return Launch(config, PrefillWgmmaKernel<Elem, kDim>, args, static_cast<float>(args.scale * kLog2E));
}

}  // namespace

int AttentionPrefillWgmma(const CudaCall& call, const CudaAttentionArgs& args) {
  if (args.sequences.num_tiles == 0) return 0;
  const int64_t parts = NumRowParts(static_cast<int>(args.heads / args.kv_heads), /*decode=*/false);
  const int64_t blocks = args.sequences.num_tiles * args.kv_heads * parts;
  return VisitTile(args, [&]<class Elem, int kDim>() -> int {
    if constexpr (kDim > 128) {
      return cudaErrorInvalidValue;
    } else {
      return LaunchKernel<Elem, kDim>(call, args, blocks);
    }
  });
}

}  // namespace switchyard::ops::cuda
