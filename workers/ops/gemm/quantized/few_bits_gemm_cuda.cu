// y = x[x_rows[i]] · weights[e]ᵀ with weights of few bits, dense and grouped.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "workers/ops/cuda/few_bits_tile_cuda.h"
#include "workers/ops/cuda/gemm_fill_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"

namespace switchyard::ops::cuda {
namespace {

template <class Elem, BitsLayout kLayout, int kTile>
__global__ void __launch_bounds__(BitsShape<kTile, kLayout>::kThreads) GemmBitsKernel(const GemmProblem p) {
  using Shape = BitsShape<kTile, kLayout>;
  if constexpr (Shape::kRows <= 32) BitsLoader<Elem, Shape>(p).PrefetchFirst();
  RunTiles<BitsLoader<Elem, Shape>, BitsSums<Elem, kLayout, Shape>, Shape>(p, DynamicShared<char>());
}

template <class Elem, BitsLayout kLayout, int kTile = 0>
int EnqueueTile(const CudaCall& call, const GemmProblem& p, const CudaBitsConfig& config) {
  if constexpr (kTile == kNumCudaBitsTiles) {
    return cudaErrorInvalidValue;
  } else {
    if (kTile != config.tile) return EnqueueTile<Elem, kLayout, kTile + 1>(call, p, config);
    using Shape = BitsShape<kTile, kLayout>;
    const int64_t shared_bytes = Shape::kFixedBytes + CudaGemmPlanBytes(p.experts);
    return Launch(ConfigOf(call, Grid(config.grid), Shape::kThreads, shared_bytes),
                  GemmBitsKernel<Elem, kLayout, kTile>, p);
  }
}

template <class Elem>
int EnqueueLayout(const CudaCall& call, const GemmProblem& p, const CudaBitsConfig& config) {
  switch (p.format) {
    case kCudaInt8:
    case kCudaQ8_0:
      return EnqueueTile<Elem, BitsLayout::kBytes>(call, p, config);
    case kCudaInt4:
    case kCudaQ4_0:
      return EnqueueTile<Elem, BitsLayout::kNibbles>(call, p, config);
    case kCudaQ4_1:
      return EnqueueTile<Elem, BitsLayout::kNibblesLeast>(call, p, config);
    case kCudaMxfp4:
      return EnqueueTile<Elem, BitsLayout::kFp4>(call, p, config);
    case kCudaQ6_K:
      return EnqueueTile<Elem, BitsLayout::kSix>(call, p, config);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

int LaunchBits(const CudaCall& call, const GemmProblem& p, const CudaBitsConfig& config) {
  if (p.rows == 0 || p.columns == 0) return cudaSuccess;
  if (p.dtype == kCudaBf16) return EnqueueLayout<__nv_bfloat16>(call, p, config);
  if (p.dtype == kCudaF16) return EnqueueLayout<__half>(call, p, config);
  return cudaErrorInvalidValue;
}

int BitsGemm(const CudaCall& call, const CudaGemmArgs& args) {
  const GemmProblem problem = ProblemOf(args);
  return LaunchBits(call, problem, ChooseBits(DescOf(call, problem, /*grouped=*/args.offsets != nullptr), args.format));
}

}  // namespace switchyard::ops::cuda
