// The attention half of a decoder block: residual += Wo · attention(rope(norm(Wqkv · norm(residual)))).
//
// Holds scratch that the layers of a model share (they run one after the other), kept from step to step.
// Thread-compatible.  Errors: those of the ops, for a batch that does not fit the cache.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/model/batch.h"
#include "workers/model/config.h"
#include "workers/model/weights.h"
#include "workers/ops/kv_cache_view.h"
#include "workers/ops/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class AttentionLayer {
 public:
  // config and rope: borrowed, must outlive this.
  AttentionLayer(const ModelConfig& config, DType dtype, const RopeTable& rope);

  // Writes the rows' keys and values into the cache, then adds the layer's output.
  absl::Status Run(const Stream& stream, const Batch& batch, const AttentionWeights& weights, int32_t window,
                   const KvCacheView& cache,
                   const TensorView& residual);  // [T, H] AccDType

 private:
  // Norms, clamp and RoPE between projection and attention, in place.
  absl::Status PrepareQkv(const Stream& stream, const Batch& batch, const AttentionWeights& weights,
                          const TensorView& qkv);  // [T, N*D + 2*Nkv*D]

  const ModelConfig& config_;
  const RopeTable& rope_;
  ScratchTensor normed_;    // [T, H]
  ScratchTensor qkv_;       // [T, N*D + 2*Nkv*D]
  ScratchTensor attended_;  // [T, N*D]
};

}  // namespace switchyard
