// Fills a CTA's stages of shared memory with tiles, from one of its items to the next without a pause.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_store_cuda.h"
#include "workers/ops/cuda/gemm_tile_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

template <class Loader, class Shape>
class StageFiller {
 public:
  __device__ StageFiller(const GemmProblem& p, const GemmPlan& plan, char* stages)
      : loader_(p),
        plan_(plan),
        stages_(stages),
        k_(static_cast<int32_t>(p.k)),
        item_(static_cast<int32_t>(blockIdx.x)) {}

  // Starts the next stage's copies, if there is one, and closes a group in any case, so that waits can count groups.
  __device__ void FillNext() {
    if (at_ > 0 || item_ < plan_.num_items()) {
      if (at_ == 0) loader_.Aim(plan_.Find(item_));
      loader_.Load(stages_ + stage_ * Shape::kStageBytes, at_);
      at_ += Shape::kDepth;
      if (at_ >= k_) {
        at_ = 0;
        item_ += static_cast<int32_t>(gridDim.x);
      }
    }
    CpAsyncCommit();
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
  }

  // The one that was filled that many calls ago.
  __device__ const char* FilledBefore(int calls) const {
    return stages_ + (stage_ < calls ? stage_ - calls + Shape::kStages : stage_ - calls) * Shape::kStageBytes;
  }

 private:
  Loader loader_;
  const GemmPlan& plan_;
  char* stages_;
  const int32_t k_;
  int32_t item_, at_ = 0;
  int stage_ = 0;
};

// A CTA's part of a product.  A pipeline of the shape's stages runs through all of its items without a break: while one
// tile's last steps are multiplied and its outputs stored, the next tile's first steps are on their way already.
template <class Loader, class Sums, class Shape>
__device__ __forceinline__ void RunTiles(const GemmProblem& p, char* stages) {
  float* scratch = reinterpret_cast<float*>(stages + Shape::kStages * Shape::kStageBytes);
  float* partial = scratch + Shape::kWarps * kStoreScratchBytes / 4;
  scratch += threadIdx.x / 32 * (kStoreScratchBytes / 4);

  WaitForPrecedingKernel();
  const GemmPlan plan(p, stages + Shape::kFixedBytes, Shape::kRows, p.gated ? Shape::kColumns / 2 : Shape::kColumns);
  StageFiller<Loader, Shape> filler(p, plan, stages);
  for (int i = 0; i < Shape::kStages - 1; ++i) filler.FillNext();
  LaunchDependents();

  Sums sums(p);
  int stage = 0;
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < plan.num_items(); i += static_cast<int32_t>(gridDim.x)) {
    sums.Begin(plan.Find(i));
    for (int32_t k = 0; k < static_cast<int32_t>(p.k); k += Shape::kDepth) {
      CpAsyncWait<Shape::kStages - 2>();
      __syncthreads();  // all threads have this stage, and are done with the one before, which is filled next
      filler.FillNext();
      sums.Multiply(stages + stage * Shape::kStageBytes);
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    sums.AddPartials(partial);
    sums.Store(plan.Find(i), scratch);  // found again: to remember it costs registers
  }
}

}  // namespace switchyard::ops::cuda
