// y = gamma · round(x / sqrt(mean(x²) + eps)), round() to Elem, or none with rounds_once; a team of threads takes one
// group of `width` elements.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSmallBlock = 128;  // threads of a block with teams of one warp
constexpr int kHeld = 4;          // packs of x that a thread keeps in registers between the sum and the scaling

// The sum over a team, the same in all of its threads: over a warp by halving, over warps in their order.
template <class Acc>
__device__ Acc TeamSum(Acc sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = Add(sum, __shfl_xor_sync(kAllLanes, sum, distance));
  }
  if (blockDim.x == 32) return sum;
  __shared__ Acc of_warp[kMaxThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : Acc{0};
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = Add(sum, __shfl_xor_sync(kAllLanes, sum, distance));
  }
  return sum;
}

// Block (n, 1): one team of n threads; block (32, n): n teams of a warp.  A thread takes packs threadIdx.x,
// threadIdx.x + blockDim.x, ... of the group, so the order of the sum depends on the width alone.
template <class In, class Elem>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormKernel(const RmsNormArgs a, const int64_t teams, const bool aligned) {
  using Acc = AccT<Elem>;
  constexpr int kCount = kPackOf<In, Elem>;
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t team = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (team >= teams) return;  // the whole team, and a block of several warps is one team
  const int64_t row = team / a.groups, first = (team - row * a.groups) * a.width;
  const In* x = static_cast<const In*>(a.x) + row * a.x_stride + first;  // may be y
  const Elem* gammas = static_cast<const Elem*>(a.gamma);
  Elem* y = static_cast<Elem*>(a.y) + row * a.y_stride + first;
  const int64_t step = int64_t{blockDim.x} * kCount, begin = int64_t{threadIdx.x} * kCount;

  Pack<In, kCount> held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    held[i] = LoadPack<kCount>(x + begin + i * step, a.width - begin - i * step, aligned);
  }
  Acc sum{0};
  const auto add_squares = [&](const Pack<In, kCount>& pack) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum = Fma(Acc(Widen(pack.at[j])), Acc(Widen(pack.at[j])), sum);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) add_squares(held[i]);
  for (int64_t c = begin + kHeld * step; c < a.width; c += step) {
    add_squares(LoadPack<kCount>(x + c, a.width - c, aligned));
  }
  const Acc scale = InverseRoot(Add(TeamSum(sum) / static_cast<Acc>(a.width), static_cast<Acc>(a.eps)));

  const auto write = [&](const Pack<In, kCount>& pack, int64_t c) {
    const auto gamma = LoadPack<kCount>(gammas + c, a.width - c, aligned);
    Pack<Elem, kCount> out;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const Acc normed = Mul(Widen(pack.at[j]), scale);
      out.at[j] = Narrow<Elem>(Mul(Widen(gamma.at[j]), a.rounds_once ? normed : Acc(Widen(Narrow<Elem>(normed)))));
    }
    StorePack(out, y + c, a.width - c, aligned);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (begin + i * step < a.width) write(held[i], begin + i * step);
  }
  for (int64_t c = begin + kHeld * step; c < a.width; c += step) {
    write(LoadPack<kCount>(x + c, a.width - c, aligned), c);
  }
}

template <class In, class Elem>
int LaunchNorm(const CudaCall& call, const RmsNormArgs& args, int64_t rows) {
  constexpr int kCount = kPackOf<In, Elem>;
  const int64_t teams = rows * args.groups;
  if (teams <= 0) return 0;
  const bool aligned = Aligned<kCount>(static_cast<const In*>(args.x), args.x_stride) &&
                       Aligned<kCount>(static_cast<Elem*>(args.y), args.y_stride) &&
                       Aligned<kCount>(static_cast<const Elem*>(args.gamma), args.width);
  // Two packs a thread.
  const int64_t warps = std::min<int64_t>((args.width + 64 * kCount - 1) / (64 * kCount), kMaxThreads / 32);
  const dim3 block = warps == 1 ? dim3(32, kSmallBlock / 32) : dim3(static_cast<unsigned>(32 * warps));
  return Launch(ConfigOf(call, Grid((teams + block.y - 1) / block.y), block), &RmsNormKernel<In, Elem>, args, teams,
                aligned);
}

}  // namespace

int RmsNorm(const CudaCall& call, const RmsNormArgs& args, int64_t rows) {
  return VisitElem(args.dtype, [&]<class Elem>() {
    return args.x_dtype == args.dtype ? LaunchNorm<Elem, Elem>(call, args, rows)
                                      : LaunchNorm<AccT<Elem>, Elem>(call, args, rows);
  });
}

}  // namespace switchyard::ops::cuda
