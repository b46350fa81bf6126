// The work between the product for q, k and v and attention, in one pass over the rows: the norms of q and k, clip,
// rotation, and the write of k and v into the cache.  In the order and with the roundings of rms_norm.h, clamp.h,
// rope.h and kv_cache_view.h one after the other.
//
// A warp takes one head of one row; it reads the head twice where there is a norm (the second time from the L1), and
// each lane writes only what it has read.  With a norm over all heads a block takes all of q, of k or of v of a row, so
// that it can sum over them.  Sums have the order of rms_norm_cuda.cu, so that these rows have the bits of those ops.
// A lane has two loads of kVec elements in flight; at 48 warps an SM that is 12 KiB.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kHeadThreads = 128;  // of a block of heads: a warp each
constexpr int kMaxThreads = 1024;  // of a block that sums over all heads
constexpr int64_t kMaxDim = 256;   // kMaxHeadDim

// One head of q, k or v in one row.
template <class Elem>
struct Head {
  Elem* x = nullptr;                             // [D], changed in place
  const Elem* __restrict__ gamma = nullptr;      // [D] or null: no norm
  Elem* cache = nullptr;                         // [D] or null: not written there
  const AccT<Elem>* __restrict__ cos = nullptr;  // [half]
  const AccT<Elem>* __restrict__ sin = nullptr;  // [half]
  int half = 0;                                  // 0: no rotation
  bool change = true;                            // x is written
};

// `index` counts the heads of q, then those of k, then those of v.
template <class Elem>
__device__ __forceinline__ Head<Elem> FindHead(const CudaQkvArgs& a, int64_t row, int index, const RowPlace& place) {
  const int heads = static_cast<int>(a.heads), kv_heads = static_cast<int>(a.kv.kv_heads);
  const int64_t dim = a.kv.head_dim, table_row = a.table_rows[row];
  Head<Elem> head = {.cos = static_cast<const AccT<Elem>*>(a.cos) + table_row * a.half,
                     .sin = static_cast<const AccT<Elem>*>(a.sin) + table_row * a.half,
                     .half = static_cast<int>(a.half)};
  const void* gamma = nullptr;
  int within = index;
  if (index < heads) {
    head.x = static_cast<Elem*>(a.q_rows) + row * a.q_stride;
    gamma = a.q_gamma;
  } else if ((within -= heads) < kv_heads) {
    head.x = static_cast<Elem*>(const_cast<void*>(a.kv.k_rows)) + row * a.kv.k_stride;
    head.cache = static_cast<Elem*>(a.kv.k_cache);
    gamma = a.k_gamma;
  } else {
    within -= kv_heads;
    head.x = static_cast<Elem*>(const_cast<void*>(a.kv.v_rows)) + row * a.kv.v_stride;
    head.cache = static_cast<Elem*>(a.kv.v_cache);
    head.half = 0;
    head.change = a.clip > 0;
  }
  head.x += within * dim;
  if (gamma != nullptr) head.gamma = static_cast<const Elem*>(gamma) + (a.norm_per_head ? 0 : within * dim);
  if (place.sequence < 0) head.cache = nullptr;
  if (head.cache != nullptr) head.cache += CacheRow(a.kv, place.sequence, within, place.pos) * dim;
  return head;
}

// Warps that a sum over `width` elements is spread over: as many as rms_norm_cuda.cu takes, for the same bits.
template <class Elem>
__host__ __device__ constexpr int SumWarps(int64_t width) {
  const int64_t warps = (width + 64 * kPackOf<Elem> - 1) / (64 * kPackOf<Elem>);
  return static_cast<int>(warps < kMaxWarps ? warps : kMaxWarps);
}

// Σ x² of one thread's packs of x[0, width); threads beyond those of SumWarps have none.
template <class Elem>
__device__ __forceinline__ AccT<Elem> SumSquares(const Elem* x, int width, int thread) {
  constexpr int kCount = kPackOf<Elem>;
  const int threads = 32 * SumWarps<Elem>(width);
  AccT<Elem> sum = 0;
  if (thread >= threads) return sum;
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  for (int begin = thread * kCount; begin < width; begin += threads * kCount) {
    const auto pack = LoadPack<kCount>(x + begin, width - begin, aligned);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum = Fma(Widen(pack.at[i]), Widen(pack.at[i]), sum);
  }
  return sum;
}

// 1 / rms of a head, by one warp.
template <class Elem>
__device__ __forceinline__ AccT<Elem> HeadScale(const Elem* x, int dim, AccT<Elem> eps) {
  static_assert(SumWarps<Elem>(kMaxDim) <= 2);
  const int lane = threadIdx.x % 32;
  AccT<Elem> sum = WarpSum(SumSquares(x, dim, lane));
  if (SumWarps<Elem>(dim) == 2) sum = Add(sum, WarpSum(SumSquares(x, dim, 32 + lane)));
  return InverseRoot(Add(sum / static_cast<AccT<Elem>>(dim), eps));
}

// 1 / rms of all heads of q or of k in a row, by the block.
template <class Elem>
__device__ __forceinline__ AccT<Elem> WholeScale(const Elem* x, int width, AccT<Elem> eps) {
  __shared__ AccT<Elem> scratch[kMaxWarps];
  const AccT<Elem> sum = BlockSum(SumSquares(x, width, static_cast<int>(threadIdx.x)), scratch);
  return InverseRoot(Add(sum / static_cast<AccT<Elem>>(width), eps));
}

// Norm and clip of one element.  The result is a value of Elem.
template <class Elem>
__device__ __forceinline__ AccT<Elem> Prepare(Elem x, const Elem* gamma, AccT<Elem> scale, AccT<Elem> clip) {
  using Acc = AccT<Elem>;
  Acc value = Widen(x);
  if (gamma != nullptr) {
    value = Widen(Narrow<Elem>(Mul(value, scale)));
    value = Widen(Narrow<Elem>(Mul(Widen(*gamma), value)));
  }
  if (clip > 0) {
    value = value > clip ? clip : value;  // false for NaN, which stays NaN
    value = value < -clip ? -clip : value;
    value = Widen(Narrow<Elem>(value));
  }
  return value;
}

template <int kVec, class Elem>
__device__ __forceinline__ void StoreHead(const Head<Elem>& head, int j, const Pack<Elem, kVec>& pack) {
  if (head.change) *reinterpret_cast<Pack<Elem, kVec>*>(head.x + j) = pack;
  if (head.cache != nullptr) *reinterpret_cast<Pack<Elem, kVec>*>(head.cache + j) = pack;
}

// Prepares one head, by one warp.  scale: 1 / rms, if there is a gamma.
template <int kVec, class Elem>
__device__ __forceinline__ void ProcessHead(const Head<Elem>& head, int dim, AccT<Elem> scale, AccT<Elem> clip) {
  using Acc = AccT<Elem>;
  using Vec = Pack<Elem, kVec>;
  const int lane = threadIdx.x % 32;
  const auto prepare = [&](const Vec& x, int j, int i) {
    return Prepare(x.at[i], head.gamma == nullptr ? nullptr : head.gamma + j + i, scale, clip);
  };
  for (int j = lane * kVec; j < head.half; j += 32 * kVec) {
    Vec low = *reinterpret_cast<const Vec*>(head.x + j), high = *reinterpret_cast<const Vec*>(head.x + head.half + j);
    const auto cos = *reinterpret_cast<const Pack<Acc, kVec>*>(head.cos + j);
    const auto sin = *reinterpret_cast<const Pack<Acc, kVec>*>(head.sin + j);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Acc x1 = prepare(low, j, i), x2 = prepare(high, head.half + j, i);
      low.at[i] = Narrow<Elem>(Add(Mul(x1, cos.at[i]), -Mul(x2, sin.at[i])));
      high.at[i] = Narrow<Elem>(Add(Mul(x2, cos.at[i]), Mul(x1, sin.at[i])));
    }
    StoreHead(head, j, low);
    StoreHead(head, head.half + j, high);
  }
  for (int j = 2 * head.half + lane * kVec; j < dim; j += 32 * kVec) {
    Vec x = *reinterpret_cast<const Vec*>(head.x + j);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x.at[i] = Narrow<Elem>(prepare(x, j, i));
    StoreHead(head, j, x);
  }
}

// Block (row, part).  whole: the parts are q, k and v, each normed over all its heads; else parts of blockDim / 32
// heads.
template <class Elem, int kVec>
__global__ void __launch_bounds__(kMaxThreads) QkvKernel(const CudaQkvArgs a, const int parts, const bool whole) {
  using Acc = AccT<Elem>;
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t row = blockIdx.x / parts;
  const int part = static_cast<int>(blockIdx.x % parts), warps = static_cast<int>(blockDim.x) / 32;
  if (a.table_rows[row] < 0) return;
  const int heads = static_cast<int>(a.heads), kv_heads = static_cast<int>(a.kv.kv_heads);
  const int dim = static_cast<int>(a.kv.head_dim);
  int begin = part * warps, end = begin + warps;
  if (whole) {
    begin = part == 0 ? 0 : heads + (part - 1) * kv_heads;
    end = heads + part * kv_heads;
  }
  end = end < heads + 2 * kv_heads ? end : heads + 2 * kv_heads;
  const RowPlace place = FindRow(a.kv.sequences, row);
  const Acc eps = static_cast<Acc>(a.eps), clip = static_cast<Acc>(a.clip);
  Acc scale = 0;
  if (whole) {
    const Head<Elem> first = FindHead<Elem>(a, row, begin, place);
    if (first.gamma != nullptr) scale = WholeScale(first.x, (end - begin) * dim, eps);
  }
  for (int index = begin + static_cast<int>(threadIdx.x / 32); index < end; index += warps) {
    const Head<Elem> head = FindHead<Elem>(a, row, index, place);
    if (!whole && head.gamma != nullptr) scale = HeadScale(head.x, dim, eps);
    ProcessHead<kVec>(head, dim, scale, clip);
  }
}

template <class Elem, int kVec>
bool VectorsFit(const CudaQkvArgs& a) {
  const auto fits = [](const void* p, int64_t stride) { return Aligned<kVec>(static_cast<const Elem*>(p), stride); };
  return a.half % kVec == 0 && fits(a.q_rows, a.q_stride) && fits(a.kv.k_rows, a.kv.k_stride) &&
         fits(a.kv.v_rows, a.kv.v_stride) && fits(a.kv.k_cache, a.kv.head_dim) && fits(a.kv.v_cache, a.kv.head_dim) &&
         Aligned<kVec>(static_cast<const AccT<Elem>*>(a.cos), a.half) &&
         Aligned<kVec>(static_cast<const AccT<Elem>*>(a.sin), a.half);
}

}  // namespace

int Qkv(const CudaCall& call, const CudaQkvArgs& args) {
  if (args.kv.sequences.rows == 0) return 0;
  const bool whole = !args.norm_per_head && (args.q_gamma != nullptr || args.k_gamma != nullptr);
  const int64_t warps = kHeadThreads / 32;
  const int parts = whole ? 3 : static_cast<int>((args.heads + 2 * args.kv.kv_heads + warps - 1) / warps);
  if (args.kv.head_dim > kMaxDim) return cudaErrorInvalidValue;
  return VisitElem(args.kv.dtype, [&]<class Elem>() -> int {
    const int64_t widest = std::max(args.heads, args.kv.kv_heads) * args.kv.head_dim;
    const int threads = whole ? 32 * SumWarps<Elem>(widest) : kHeadThreads;
    const LaunchConfig config = ConfigOf(call, Grid(args.kv.sequences.rows * parts), threads);
    return VectorsFit<Elem, 2>(args) ? Launch(config, QkvKernel<Elem, 2>, args, parts, whole)
                                     : Launch(config, QkvKernel<Elem, 1>, args, parts, whole);
  });
}

}  // namespace switchyard::ops::cuda
