// The same product as grouped_gemm_cuda.cu for many rows an expert, by Hopper's wgmma, which takes both operands from
// shared memory and reaches rates that mma.sync does not.
//
// Two warpgroups, each half of the tile's weight rows in blocks of 64, by all of its 128 tokens (or the first 64 of
// them, where the expert has no more).  128 bytes a row and step, in the order that mma.sync's tiles have, too, which
// is the hardware's swizzle of 128 bytes.  A tile of 256 x 128 takes 48 KB a step for 4.2 million products, 1024 clocks
// of the tensor cores: they read 96 bytes a clock from shared memory and 48 come in, of 128 that it can do; 128 x 128
// has 96 + 64, so it is for products that lack depth.
//
// Stages: while the tensor cores take step i, step i - 1 may not be done yet, and the stages of steps up to
// i + stages - 2 are filled or on their way: one less than mma.sync's loop has.  A thread that waited for step i - 1
// says so by the barrier of step i + 1, after which i - 1's stage is filled again.
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

// A warpgroup's sums of one item: kI blocks of 64 weight rows by 128 tokens.
template <class Elem, class Shape>
class WgmmaSums {
 public:
  static constexpr int kWarpgroups = 2, kBlock = 64, kRowBytes = Shape::kDepth * 2;
  static constexpr int kI = Shape::kColumns / (kWarpgroups * kBlock);
  static_assert(Shape::kThreads == kWarpgroups * 128 && kRowBytes == 128 && Shape::kRows == 128 && kI >= 1);
  static_assert(Shape::kColumns * kRowBytes % 1024 == 0 && Shape::kStageBytes % 1024 == 0);

  // Begins to add a stage, as one group; `first`: to begin with it, instead.  Of narrow ones, the first 64 tokens.
  template <bool kNarrow>
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
        if constexpr (kNarrow) {
          WgmmaM64N64K16<Elem>(sum_[i], a, b, !first || step > 0);
        } else {
          WgmmaM64N128K16<Elem>(sum_[i], a, b, !first || step > 0);
        }
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

  // To y, through this warp's scratch.
  __device__ void Store(const GemmProblem& p, const GemmItem& item, float* scratch) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t first_column = int64_t{item.column_tile} * (p.gated ? Shape::kColumns / 2 : Shape::kColumns);
#pragma unroll
    for (int i = 0; i < kI; ++i) {
      const int row_block = (warp / 4 * kI + i) * 4 + warp % 4;  // of 16 weight rows
      const int64_t column = first_column + row_block * (p.gated ? 8 : 16);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int64_t row = int64_t{item.first_row} + j * 8;
        if (row < item.end_row) StoreMma<Elem>(p, sum_[i][j], {row, item.end_row, column}, scratch);
      }
    }
  }

 private:
  float sum_[kI][16][4] = {};
};

// Adds up one item.  Whether it is narrow is asked outside of this loop: with a branch around the products, the
// compiler would wait for each of them.
template <bool kNarrow, class Elem, class Shape>
__device__ __forceinline__ void AddUp(const GemmProblem& p, const char* stages, int* stage,
                                      StageFiller<Elem, Shape>* filler, WgmmaSums<Elem, Shape>* sums) {
  for (int32_t k = 0; k < static_cast<int32_t>(p.k); k += Shape::kDepth) {
    CpAsyncWait<Shape::kStages - 3>();
    FenceProxyAsync();
    __syncthreads();  // all threads have this stage, and no tensor core reads the one that is filled next
    sums->template Multiply<kNarrow>(stages + *stage * Shape::kStageBytes, k == 0);
    filler->FillNext();
    WgmmaWait<1>();
    *stage = *stage + 1 == Shape::kStages ? 0 : *stage + 1;
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
    scratch += threadIdx.x / 32 * (kStoreScratchBytes / 4);

    WaitForPrecedingKernel();
    const GemmPlan plan(p, stages + Shape::kFixedBytes, Shape::kRows, p.gated ? Shape::kColumns / 2 : Shape::kColumns);
    const int32_t num_items = plan.num_items();
    StageFiller<Elem, Shape> filler(p, plan, stages, num_items);
    for (int i = 0; i < Shape::kStages - 2; ++i) filler.FillNext();
    LaunchDependents();

    WgmmaSums<Elem, Shape> sums;
    int stage = 0;
    for (int32_t i = static_cast<int32_t>(blockIdx.x); i < num_items; i += static_cast<int32_t>(gridDim.x)) {
      const GemmItem item = plan.Find(i);
      if (item.end_row - item.first_row <= 64) {
        AddUp<true>(p, stages, &stage, &filler, &sums);
      } else {
        AddUp<false>(p, stages, &stage, &filler, &sums);
      }
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
