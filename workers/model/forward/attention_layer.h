// The attention half of a decoder block: residual += Wo · attention(rope(norm(Wqkv · norm(residual)))).
// Holds scratch that the layers of a model share, kept from step to step.  Thread-compatible.
// Errors: the ops', for a batch that does not fit the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/adapter_products.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/row_adapters.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/forward/training_noise.h"
#include "workers/model/runner/token_rebalancer.h"
#include "workers/model/weights/weights.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/ops/rope/qkv.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

// One layer's call.  Borrowed.
struct AttentionCall {
  const Batch* batch = nullptr;
  TokenRebalancer* rebalancing = nullptr;  // null: no rows are given away
  const AttentionWeights* weights = nullptr;
  int32_t window = 0;
  ops::KvCacheView cache;
  const SavedLayer* saved = nullptr;  // kept for a backward pass; null: nothing is.  Not with rows that are given away.
  LayerNoise noise = {};
  const std::vector<LayerAdapter>* adapters = nullptr;  // that the batch's rows choose from; null: there are none
};

// Describes what the model does between the projection and attention.
ops::QkvDesc QkvDescOf(const ModelConfig& config, const AttentionWeights& weights);

class AttentionLayer {
 public:
  // config and rope: borrowed, must outlive this.
  AttentionLayer(const ModelConfig& config, DType dtype, const ops::RopeTable& rope, Device device);

  // Allocates scratch for so many rows.  Errors: ResourceExhausted.
  absl::Status Reserve(int64_t rows);

  // Writes the own rows' keys and values into the cache, then adds the layer's output to the computed rows.
  absl::Status Run(const Stream& stream, const AttentionCall& call,
                   const TensorView& residual);  // [T, H] AccDType, T computed rows

 private:
  // residual → q, k, v as projected.
  absl::Status ProjectIn(const Stream& stream, const AttentionCall& call, const TensorView& residual,
                         const TensorView& qkv);  // [T, N*D + 2*Nkv*D]
  // Adds what the adapters of the batch's rows make of x to y.
  absl::Status AddRowAdapters(const Stream& stream, const AttentionCall& call,
                              std::vector<AdapterWeights> LayerAdapter::*projections, const TensorView& x,
                              const TensorView& y);
  absl::Status Attend(const Stream& stream, const AttentionCall& call, const ops::SequenceBatch& sequences,
                      const TensorView& qkv,        // [own rows or more, N*D + 2*Nkv*D]
                      const TensorView& attended);  // [own rows or more, N*D]
  // Writes the rows' keys and values into the cache, then attends.
  absl::Status CacheAndAttend(const Stream& stream, const AttentionCall& call, const ops::SequenceBatch& sequences,
                              const TensorView& qkv, const TensorView& attended);
  // Adds the output projection of the computed rows to the residual.
  absl::Status ProjectOut(const Stream& stream, const AttentionCall& call, const TensorView& attended,
                          const TensorView& residual);
  absl::Status AttendGiven(const Stream& stream, const AttentionCall& call, const TensorView& qkv,
                           const TensorView& attended);

  const ModelConfig& config_;
  const ops::RopeTable& rope_;
  ScratchTensor normed_;    // [T, H]
  ScratchTensor qkv_;       // [T, N*D + 2*Nkv*D]
  ScratchTensor attended_;  // [T, N*D]
  ScratchTensor added_;     // [T, H] AccDType: the layer's output, with dropout
  AdapterProducts adapters_;
  RowAdapters row_adapters_;
};

}  // namespace switchyard::model
