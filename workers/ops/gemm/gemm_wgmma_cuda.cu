// The same product as grouped_gemm_cuda.cu for many rows an expert, by Hopper's wgmma, which takes both operands from
// shared memory and reaches rates that mma.sync does not.
//
// Two warpgroups, each half of the tile's weight rows in blocks of 64, by all of its tokens (or the first 64, 96,
// 128 or 160 of them, where it has no more).  128 bytes a row and step, in the order that mma.sync's tiles have, too,
// which is the hardware's swizzle of 128 bytes.
//
// What limits it, of an H100 whose tensor cores take 4096 operations a clock and SM: 56 KB a step for 1536 clocks of
// the tensor cores, of which L2 gives all SMs together some 24 bytes a clock and SM, so 2389 clocks.  Shared memory,
// 128 bytes a clock, comes next: products read 85, and 37 come in.  So the tile is as large as registers allow (192
// sums a thread, 63 for all else): of 1024 rows an expert, one of 256 x 128 reads a fifth more, and takes an eighth
// longer.  More would need clusters of CTAs that share what they read.
//
// Stages: while the tensor cores take step i, the stage of step i + 1 is filled or on its way, and as soon as step i -
// 1 is done, its stage is filled for step i + 2: hence two barriers a step, and two stages on their way.  With one on
// its way, products of an H100 took a third longer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>

#include "workers/ops/cuda/gemm_fill_cuda.h"
#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/cuda/gemm_store_cuda.h"
#include "workers/ops/cuda/gemm_tile_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/wgmma_cuda.h"

namespace switchyard::ops::cuda {
namespace {

// How many stages are filled or on their way when a step begins.
template <class Shape>
inline constexpr int kStagesAhead = Shape::kStages - 1;

template <class Elem, class Shape>
using Filler = StageFiller<TileLoader<Elem, Shape>, Shape>;

// A warpgroup's sums of one item: kI blocks of 64 weight rows by the tile's tokens.
template <class Elem, class Shape>
class WgmmaSums {
 public:
  static constexpr int kWarpgroups = Shape::kThreads / 128, kBlock = 64, kRowBytes = Shape::kDepth * 2;
  static constexpr int kI = Shape::kColumns / (kWarpgroups * kBlock), kJ = Shape::kRows / 8;
  static_assert(Shape::kThreads == kWarpgroups * 128 && Shape::kColumns == kWarpgroups * kI * kBlock && kI >= 1);
  static constexpr int kStoreBlocks = Shape::kT.store_blocks, kParts = kJ / kStoreBlocks;
  static_assert(kRowBytes == 128 && kJ % kStoreBlocks == 0);
  static_assert(Shape::kColumns * kRowBytes % 1024 == 0 && Shape::kStageBytes % 1024 == 0);

  // Begins to add a stage, as one group; `first`: to begin with it, instead.  Of the first kTokens tokens.
  template <int kTokens>
  __device__ __forceinline__ void Multiply(const char* stage, bool first) {
    const uint64_t weights = MakeWgmmaDescriptor(stage + threadIdx.x / 128 * (kI * kBlock * kRowBytes));
    const uint64_t tokens = MakeWgmmaDescriptor(stage + Shape::kColumns * kRowBytes);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < Shape::kDepth / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kI; ++i) {
        const uint64_t a = AdvanceWgmmaDescriptor(weights, i * kBlock * kRowBytes + step * 32);
        const uint64_t b = AdvanceWgmmaDescriptor(tokens, step * 32);
        WgmmaM64K16<Elem, kTokens>(sum_[i], a, b, !first || step > 0);
      }
    }
    WgmmaCommit();
  }

  // After the last stage, before Store().
  __device__ __forceinline__ void Finish() {
    WgmmaWait<0>();
#pragma unroll
    for (int i = 0; i < kI; ++i) WgmmaKeep(sum_[i]);
  }

  // To y, through this warp's scratch, as many blocks at once as it has room for.  Only what names registers is
  // unrolled: with all of it, the code would be larger than the instruction cache.
  __device__ __forceinline__ void Store(const GemmProblem& p, const GemmItem& item, float* scratch) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int32_t first_column = item.column_tile * (p.gated ? Shape::kColumns / 2 : Shape::kColumns);
#pragma unroll 1
    for (int part = 0; part < kI * kParts; ++part) {
      const int32_t row = item.first_row + part % kParts * (kStoreBlocks * 8);
      if (row >= item.end_row) continue;
#pragma unroll
      for (int block = 0; block < kI * kJ; ++block) {
        if (block / kStoreBlocks != part) continue;
        PutBlock(sum_[block / kJ][block % kJ], scratch + block % kStoreBlocks * (kStoreScratchBytes / 4));
      }
      __syncwarp();
      const int row_block = (warp / 4 * kI + part / kParts) * 4 + warp % 4;  // of 16 weight rows
      const int32_t column = first_column + row_block * (p.gated ? 8 : 16);
      StoreBlocks<Elem>(p, {row, item.end_row, column, p.bias}, kStoreBlocks * 8, scratch);
      __syncwarp();  // the scratch is free again
    }
  }

 private:
  float sum_[kI][kJ][4] = {};
};

// Adds up an item of `rows` tokens by the narrowest product from kTokens on that takes them.  Which one is asked
// outside of the loop: with a branch around the products, the compiler would wait for each of them.
template <int kTokens, class Elem, class Shape>
__device__ __forceinline__ void AddUp(const GemmProblem& p, int rows, Filler<Elem, Shape>* filler,
                                      WgmmaSums<Elem, Shape>* sums) {
  if constexpr (kTokens < Shape::kRows) {
    if (rows > kTokens) return AddUp<kTokens + 32>(p, rows, filler, sums);
  }
  for (int32_t k = 0; k < static_cast<int32_t>(p.k); k += Shape::kDepth) {
    CpAsyncWait<kStagesAhead<Shape> - 1>();
    FenceProxyAsync();
    __syncthreads();  // all threads have this stage, and no tensor core reads the one before the last
    sums->template Multiply<kTokens>(filler->FilledBefore(kStagesAhead<Shape>), k == 0);
    WgmmaWait<1>();
    __syncthreads();  // nor the last
    filler->FillNext();
  }
  sums->Finish();
}

// Code for other devices is one warp that traps, which is how TakesWgmma() knows it.
template <class Elem, int kTile>
__global__ void __launch_bounds__(kWgmmaBuilt ? TileShape<kTile>::kThreads : 32, TileShape<kTile>::kT.ctas_per_sm)
    GemmWgmmaKernel(const GemmProblem p) {
  using Shape = TileShape<kTile>;
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else {
    char* stages = DynamicShared<char>();
    stages += -SharedAddress(stages) % 1024;
    float* scratch = reinterpret_cast<float*>(stages + Shape::kStages * Shape::kStageBytes);
    scratch += threadIdx.x / 32 * (Shape::kStoreBytes / 4);

    WaitForPrecedingKernel();
    const GemmPlan plan(p, stages + Shape::kFixedBytes, Shape::kRows, p.gated ? Shape::kColumns / 2 : Shape::kColumns);
    Filler<Elem, Shape> filler(p, plan, stages);
    for (int i = 0; i < kStagesAhead<Shape>; ++i) filler.FillNext();
    LaunchDependents();

    WgmmaSums<Elem, Shape> sums;
    for (int32_t i = static_cast<int32_t>(blockIdx.x); i < plan.num_items(); i += static_cast<int32_t>(gridDim.x)) {
      const GemmItem item = plan.Find(i);
      AddUp<64>(p, item.end_row - item.first_row, &filler, &sums);
      sums.Store(p, plan.Find(i), scratch);
    }
  }
}

template <class Elem>
int EnqueueWgmma(const CudaCall& call, const GemmProblem& p, const CudaGemmConfig& config) {
  return VisitGemmTile(config.tile, [&]<int kTile>() -> int {
    using Shape = TileShape<kTile>;
    if constexpr (Shape::kT.wgmma) {
      const int64_t shared_bytes = CudaGemmSharedBytes(Shape::kT, p.experts);
      return Launch(ConfigOf(call, Grid(config.grid), Shape::kThreads, shared_bytes), GemmWgmmaKernel<Elem, kTile>, p);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

// Of the current device.
bool AskWhetherWgmma(int device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess || major != 9 ||
      minor != 0) {
    return false;
  }
  constexpr int kTile = kNumCudaGemmTiles - 1;
  static_assert(kCudaGemmTiles[kTile].wgmma);
  cudaFuncAttributes attributes = {};
  const auto* kernel = reinterpret_cast<const void*>(&GemmWgmmaKernel<__nv_bfloat16, kTile>);
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.maxThreadsPerBlock >= TileShape<kTile>::kThreads;
}

}  // namespace

bool TakesWgmma(int device) {
  static std::atomic<int> known[kMaxDevicesPerProcess] = {};  // 0: not asked, 1: no, 2: yes
  if (device < 0 || device >= kMaxDevicesPerProcess) return false;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess || current != device) return false;
    answer = AskWhetherWgmma(device) ? 2 : 1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

int LaunchWgmma(const CudaCall& call, const GemmProblem& p, const CudaGemmConfig& config) {
  if (p.dtype == kCudaBf16) return EnqueueWgmma<__nv_bfloat16>(call, p, config);
  if (p.dtype == kCudaF16) return EnqueueWgmma<__half>(call, p, config);
  return cudaErrorInvalidValue;
}

}  // namespace switchyard::ops::cuda
