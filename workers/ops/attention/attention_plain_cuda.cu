// Attention without tensor cores: for fp32 and fp64, head dims that are no multiple of 8, odd strides.
//   s_j = (q · k_j) · scale;  m' = max(m, s);  l = l · e^(m - m') + Σ e^(s_j - m');  o = o · e^(m - m') + Σ e^(s_j -
//   m') v_j
//
// One block per (row, head), in tiles of 64 keys that begin at multiples of 64: warps take a key each for the scores,
// then every thread its dimensions of the output.  So a row's numbers depend on the row and its keys alone.  exp is the
// library's exact one.  Slow: every query head reads its keys for itself.
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/cuda/attention_cuda.h"
#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kKeys = 64;
constexpr int kMaxDim = 256;               // kMaxHeadDim
constexpr int kDims = kMaxDim / kThreads;  // of the output, per thread

__device__ __forceinline__ float ExactExp(float x) { return expf(x); }
__device__ __forceinline__ double ExactExp(double x) { return exp(x); }

// scores[c] of the tile's keys [begin, end), c = 0 at position `tile`.  query [D] and scores are in shared memory.
template <class Elem>
__device__ __forceinline__ void TileScores(const CudaAttentionArgs& a, const AccT<Elem>* query, const int64_t* offsets,
                                           int begin, int end, AccT<Elem>* scores) {
  using Acc = AccT<Elem>;
  const int lane = threadIdx.x % 32;
  for (int c = begin + static_cast<int>(threadIdx.x / 32); c < end; c += kWarps) {
    const Elem* __restrict__ key = static_cast<const Elem*>(a.k_cache) + offsets[c];
    Acc sum = 0;
    for (int d = lane; d < a.head_dim; d += 32) sum += query[d] * Widen(key[d]);
    sum = WarpSum(sum);
    if (lane == 0) scores[c] = sum * static_cast<Acc>(a.scale);
  }
}

template <class Elem>
__global__ void __launch_bounds__(kThreads) PlainKernel(const CudaAttentionArgs a) {
  using Acc = AccT<Elem>;
  __shared__ Acc query[kMaxDim], scores[kKeys];
  __shared__ int64_t offsets[kKeys];
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), tid = static_cast<int>(threadIdx.x);
  const int dim = static_cast<int>(a.head_dim), kv_head = head / static_cast<int>(a.heads / a.kv_heads);
  const RowPlace place = FindRow(a.sequences, row);
  if (place.sequence < 0) return;
  const int end_key = place.pos + 1, first_key = FirstKey(end_key, WindowOf(a));

  const Elem* __restrict__ q = static_cast<const Elem*>(a.q) + row * a.q_stride + static_cast<int64_t>(head) * dim;
  for (int d = tid; d < dim; d += kThreads) query[d] = Widen(q[d]);
  // A sink is as a key that was seen first, with a value of zeros.
  const bool has_sink = a.sinks != nullptr;
  Acc max = has_sink ? static_cast<const Acc*>(a.sinks)[head] : static_cast<Acc>(-INFINITY);
  Acc total = has_sink ? 1 : 0, out[kDims] = {};
  for (int tile = first_key / kKeys * kKeys; tile < end_key; tile += kKeys) {
    const int begin = first_key > tile ? first_key - tile : 0, end = end_key - tile < kKeys ? end_key - tile : kKeys;
    __syncthreads();  // all are done with the tile before
    if (tid >= begin && tid < end) {
      offsets[tid] = CacheRow(a, place.sequence, kv_head, tile + tid) * dim;
    }
    __syncthreads();
    TileScores<Elem>(a, query, offsets, begin, end, scores);
    __syncthreads();
    Acc new_max = max;
    for (int c = begin; c < end; ++c) new_max = scores[c] > new_max ? scores[c] : new_max;
    const Acc decay = ExactExp(max - new_max);  // the first time e^-Inf
    max = new_max;
    total *= decay;
#pragma unroll
    for (int i = 0; i < kDims; ++i) out[i] *= decay;
    __syncthreads();  // all have seen the scores
    if (tid >= begin && tid < end) scores[tid] = ExactExp(scores[tid] - max);
    __syncthreads();
    for (int c = begin; c < end; ++c) {
      const Elem* __restrict__ value = static_cast<const Elem*>(a.v_cache) + offsets[c];
      const Acc weight = scores[c];
      total += weight;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = tid + i * kThreads;
        if (d < dim) out[i] += weight * Widen(value[d]);
      }
    }
  }
  Elem* to = static_cast<Elem*>(a.out) + row * a.out_stride + static_cast<int64_t>(head) * dim;
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int d = tid + i * kThreads;
    if (d < dim) to[d] = Narrow<Elem>(out[i] / total);
  }
}

}  // namespace

int AttentionPlain(const CudaCall& call, const CudaAttentionArgs& args) {
  if (args.sequences.rows == 0) return 0;
  if (args.head_dim > kMaxDim) return cudaErrorInvalidValue;
  const LaunchConfig config = ConfigOf(call, Grid(args.sequences.rows, args.heads), kThreads);
  return VisitElem(args.dtype, [&]<class Elem>() -> int { return Launch(config, PlainKernel<Elem>, args); });
}

}  // namespace switchyard::ops::cuda
