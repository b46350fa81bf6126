// Fills a CTA's stages of shared memory with tiles, from one of its items to the next without a pause.
#pragma once

#include <cstdint>

#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_tile_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

template <class Elem, class Shape>
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
  TileLoader<Elem, Shape> loader_;
  const GemmPlan& plan_;
  char* stages_;
  const int32_t k_;
  int32_t item_, at_ = 0;
  int stage_ = 0;
};

}  // namespace switchyard::ops::cuda
