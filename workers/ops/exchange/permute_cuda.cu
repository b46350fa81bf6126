// From chosen experts to rows sorted by expert (a stable counting sort), counts per expert, and gathered rows.
//
// The sort is cut into chunks of entries, a block each, and a block's chunk into equal runs, a warp each.  Where entry
// i of expert e goes is offsets[e] + the e's in chunks before + those in runs before + those before it in its run: all
// counts, so nothing depends on which block was first.  Few entries (decoding) are one chunk and one launch.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 4096;  // entries of a block; counts in a chunk fit 16 bits
constexpr int kInFlight = 8;  // counts that a thread of the scan loads before it adds them

struct Order {
  const int32_t* __restrict__ topk_idx;  // [n]
  int64_t n;
  int experts, top_k, chunks;
  int run;               // entries of a warp; a multiple of 32
  int32_t* offsets;      // [E + 1]
  int32_t* token;        // [n]
  int32_t* slot_row;     // [n]
  int32_t* chunk_count;  // [chunks, E]: how many of each expert in a chunk, later how many before it
};

// Calls fn(entry, expert, same, rank) for every entry of this warp's run, in order, with all lanes: `same` are the
// lanes of this round with the same expert, `rank` how many of them come first.  Dropped ones (and invalid ids) have
// expert -1.
template <class Fn>
__device__ void ForRun(const Order& o, int64_t chunk, const Fn& fn) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = chunk * kChunk + warp * o.run;
  for (int64_t first = begin; first < begin + o.run && first < o.n; first += 32) {
    const int64_t entry = first + lane;
    int expert = entry < o.n ? o.topk_idx[entry] : -1;
    if (expert >= o.experts || expert < 0) expert = -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    fn(entry, expert, same, __popc(same & ((1u << lane) - 1)));
    __syncwarp();
  }
}

// of_run[w][e] = how many e's are in run w.
__device__ void CountRuns(const Order& o, int64_t chunk, uint16_t* of_run) {
  for (int i = threadIdx.x; i < kWarps * o.experts; i += kThreads) of_run[i] = 0;
  __syncthreads();
  uint16_t* mine = of_run + threadIdx.x / 32 * o.experts;
  ForRun(o, chunk, [&](int64_t, int expert, unsigned same, int rank) {
    if (expert >= 0 && rank == 0) mine[expert] = static_cast<uint16_t>(mine[expert] + __popc(same));
  });
  __syncthreads();
}

// of_run[w][e] becomes how many e's are in runs before w; returns how many are in all.
__device__ int CountsBeforeRuns(const Order& o, int expert, uint16_t* of_run) {
  int sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    uint16_t& cell = of_run[w * o.experts + expert];
    const int count = cell;
    cell = static_cast<uint16_t>(sum);
    sum += count;
  }
  return sum;
}

// Writes offsets from count(e), which it calls once for each expert.  For a whole block.
template <class Fn>
__device__ void WriteOffsets(const Order& o, const Fn& count) {
  __shared__ int of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = 0;
  for (int first = 0; first < o.experts; first += kThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const int own = expert < o.experts ? count(expert) : 0;
    int upto = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, distance);
      if (lane >= distance) upto += other;
    }
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) upto += before + total;
      total += of_warp[w];
    }
    if (expert < o.experts) o.offsets[expert] = upto - own;
    before += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) o.offsets[o.experts] = before;
  __syncthreads();
}

// REQUIRES: offsets are written; of_run from CountsBeforeRuns; before_chunk(e) = how many e's are in earlier chunks.
template <class Fn>
__device__ void Scatter(const Order& o, int64_t chunk, uint16_t* of_run, const Fn& before_chunk) {
  uint16_t* mine = of_run + threadIdx.x / 32 * o.experts;
  ForRun(o, chunk, [&](int64_t entry, int expert, unsigned same, int rank) {
    int row = -1;
    if (expert >= 0) row = o.offsets[expert] + before_chunk(expert) + mine[expert] + rank;
    __syncwarp();  // all have read before the count moves on
    if (expert >= 0 && rank == 0) mine[expert] = static_cast<uint16_t>(mine[expert] + __popc(same));
    if (entry < o.n) o.slot_row[entry] = row;
    if (row >= 0) o.token[row] = static_cast<int32_t>(entry / o.top_k);
  });
}

__global__ void __launch_bounds__(kThreads) OrderInOneBlockKernel(const Order o) {
  WaitForPrecedingKernel();
  LaunchDependents();
  uint16_t* of_run = DynamicShared<uint16_t>();  // [kWarps, E]
  CountRuns(o, 0, of_run);
  WriteOffsets(o, [&](int expert) { return CountsBeforeRuns(o, expert, of_run); });
  Scatter(o, 0, of_run, [](int) { return 0; });
}

__global__ void __launch_bounds__(kThreads) CountChunkKernel(const Order o) {
  WaitForPrecedingKernel();
  LaunchDependents();
  uint16_t* of_run = DynamicShared<uint16_t>();
  CountRuns(o, blockIdx.x, of_run);
  for (int e = threadIdx.x; e < o.experts; e += kThreads) {
    o.chunk_count[int64_t{blockIdx.x} * o.experts + e] = CountsBeforeRuns(o, e, of_run);
  }
}

__global__ void __launch_bounds__(kThreads) ScanChunksKernel(const Order o) {
  WaitForPrecedingKernel();
  LaunchDependents();
  WriteOffsets(o, [&](int expert) {
    int32_t* column = o.chunk_count + expert;
    int sum = 0;
    for (int first = 0; first < o.chunks; first += kInFlight) {
      int count[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        count[i] = first + i < o.chunks ? column[int64_t{first + i} * o.experts] : 0;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + i < o.chunks) column[int64_t{first + i} * o.experts] = sum;
        sum += count[i];
      }
    }
    return sum;
  });
}

__global__ void __launch_bounds__(kThreads) ScatterChunkKernel(const Order o) {
  WaitForPrecedingKernel();
  LaunchDependents();
  uint16_t* of_run = DynamicShared<uint16_t>();
  CountRuns(o, blockIdx.x, of_run);
  for (int e = threadIdx.x; e < o.experts; e += kThreads) CountsBeforeRuns(o, e, of_run);
  __syncthreads();
  const int32_t* before = o.chunk_count + int64_t{blockIdx.x} * o.experts;
  Scatter(o, blockIdx.x, of_run, [before](int expert) { return before[expert]; });
}

// A block counts in shared memory and adds each count once.
__global__ void __launch_bounds__(kThreads) CountExpertsKernel(const int32_t* topk_idx,  // [n]
                                                               int64_t n, int experts,
                                                               int32_t* counts) {  // [E]
  WaitForPrecedingKernel();
  LaunchDependents();
  int* count = DynamicShared<int>();
  for (int e = threadIdx.x; e < experts; e += kThreads) count[e] = 0;
  __syncthreads();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const int expert = topk_idx[i];
    if (expert >= 0 && expert < experts) atomicAdd(&count[expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    if (count[e] != 0) atomicAdd(&counts[e], count[e]);
  }
}

// Word is what one access moves: 16 bytes, or 2.
template <class Word>
struct GatherOp {
  GatherArgs a;

  __device__ void operator()(int64_t i, int64_t pack) const {
    const int32_t row = a.rows[i];
    if (row < 0 && a.keep_absent) return;
    Word word = {};
    if (row >= 0) word = reinterpret_cast<const Word*>(static_cast<const char*>(a.x) + row * a.x_stride_bytes)[pack];
    reinterpret_cast<Word*>(static_cast<char*>(a.y) + i * a.y_stride_bytes)[pack] = word;
  }
};

}  // namespace

int ExpertOrder(const CudaCall& call, const ExpertOrderArgs& a) {
  const int64_t n = a.rows * a.top_k;
  const Order o = {.topk_idx = a.topk_idx,
                   .n = n,
                   .experts = static_cast<int>(a.experts),
                   .top_k = static_cast<int>(a.top_k),
                   .chunks = static_cast<int>((n + kChunk - 1) / kChunk),
                   .run = static_cast<int>((std::min<int64_t>(n, kChunk) + kThreads - 1) / kThreads) * 32,
                   .offsets = a.offsets,
                   .token = a.token,
                   .slot_row = a.slot_row,
                   .chunk_count = static_cast<int32_t*>(call.workspace)};
  const int64_t shared_bytes = int64_t{2} * kWarps * a.experts;
  if (o.chunks <= 1) return Launch(ConfigOf(call, 1, kThreads, shared_bytes), &OrderInOneBlockKernel, o);
  if (int64_t{4} * o.chunks * a.experts > kCudaWorkspaceBytes) return cudaErrorInvalidValue;
  const LaunchConfig chunks = ConfigOf(call, Grid(o.chunks), kThreads, shared_bytes);
  if (const int error = Launch(chunks, &CountChunkKernel, o); error != 0) return error;
  if (const int error = Launch(ConfigOf(call, 1, kThreads), &ScanChunksKernel, o); error != 0) return error;
  return Launch(chunks, &ScatterChunkKernel, o);
}

int CountExperts(const CudaCall& call, const CountExpertsArgs& a) {
  if (a.n <= 0) return 0;
  const int64_t blocks = std::min<int64_t>((a.n + 4 * kThreads - 1) / (4 * kThreads), std::max(call.num_sms, 1));
  return Launch(ConfigOf(call, Grid(blocks), kThreads, 4 * a.experts), &CountExpertsKernel, a.topk_idx, a.n,
                static_cast<int>(a.experts), a.counts);
}

int Gather(const CudaCall& call, const GatherArgs& a) {
  if (InWordsOf16(a.row_bytes | a.x_stride_bytes | a.y_stride_bytes, a.x, a.y)) {
    return LaunchRows(call, GatherOp<uint4>{a}, a.count, a.row_bytes / 16);
  }
  return LaunchRows(call, GatherOp<uint16_t>{a}, a.count, a.row_bytes / 2);
}

}  // namespace switchyard::ops::cuda
