// The activations that a forward pass keeps for its backward: for every layer, the residual stream before and after
// attention, q, k and v, attention's output, and what its feed-forward keeps (moe_saved.h).  Normalized rows, cheap to
// make again, are not.
//
// Model::Forward fills it, ModelBackward reads it, and the next batch reuses it: with no more rows than before, nothing
// is allocated.  With kLayerInputs only the residual stream before each layer stays; backward repeats each layer but
// the last, exchanges included ("activation checkpointing"): a third more work for less memory (the KV cache still has
// every layer).  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "workers/model/config/config.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/ops/router/router_backward.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

enum class SavePolicy : uint8_t { kAll, kLayerInputs };

// Views into SavedForward; T rows.  A is AccDType of the model's dtype D.
struct SavedLayer {
  TensorView residual_in;   // [T, H] A: before attention's norm
  TensorView residual_mid;  // [T, H] A: before the feed-forward's norm
  TensorView projected;     // [T, (N + 2 Nkv) * D] D: q, k and v before norms and clip; rank 0: the model has neither
  TensorView qkv;           // the same as attention reads them
  TensorView attended;      // [T, N * D] D
  TensorView dense_sums;    // [T, 2F], GELU: [T, F] D: what a dense feed-forward's activation gets; rank 0: a MoE layer
  TensorView dense_hidden;  // [T, F] D
  moe::MoeSaved* moe = nullptr;  // null: a dense layer
};

class SavedForward {
 public:
  // config: borrowed, must outlive this.
  SavedForward(const ModelConfig& config, DType dtype, SavePolicy policy)
      : config_(config), policy_(policy), router_statistics_(config.layers.size()) {
    for (int64_t i = 0; i < config.num_layers(); ++i) inputs_.emplace_back(AccDType(dtype), Shape{config.hidden});
    const int64_t places = policy == SavePolicy::kAll ? config.num_layers() : 1;
    for (int64_t i = 0; i < places; ++i) places_.push_back(std::make_unique<Place>(config, dtype));
  }

  // Begins a pass over so many rows; loses what was kept.
  void Begin(int64_t num_rows) { num_rows_ = num_rows; }

  int64_t num_rows() const { return num_rows_; }
  SavePolicy policy() const { return policy_; }
  // With kLayerInputs all views but residual_in are of the layer that ran last.
  SavedLayer layer(int64_t layer_idx) {
    SavedLayer layer;
    layer.residual_in = inputs_[layer_idx].Rows(num_rows_);
    Place& place = *places_[policy_ == SavePolicy::kAll ? layer_idx : 0];
    layer.residual_mid = place.mid.Rows(num_rows_);
    layer.qkv = place.qkv.Rows(num_rows_);
    if (config_.qk_norm != QkNorm::kNone || config_.clip_qkv > 0) layer.projected = place.projected.Rows(num_rows_);
    layer.attended = place.attended.Rows(num_rows_);
    if (config_.layers[layer_idx].moe) {
      layer.moe = &place.moe;
    } else {
      layer.dense_sums = place.sums.Rows(num_rows_);
      layer.dense_hidden = place.hidden.Rows(num_rows_);
    }
    return layer;
  }
  // [L] of the routers of the pass; of dense layers empty.
  std::vector<ops::RouterStatistics>& router_statistics() { return router_statistics_; }

 private:
  struct Place {
    Place(const ModelConfig& config, DType dtype)
        : mid(AccDType(dtype), {config.hidden}),
          projected(dtype, {config.qkv_width()}),
          qkv(dtype, {config.qkv_width()}),
          attended(dtype, {config.q_width()}),
          sums(dtype, {ops::SumsWidth(config.activation, config.dense_intermediate)}),
          hidden(dtype, {config.dense_intermediate}) {}
    ScratchTensor mid, projected, qkv, attended, sums, hidden;
    moe::MoeSaved moe;
  };

  const ModelConfig& config_;
  const SavePolicy policy_;
  int64_t num_rows_ = 0;
  std::vector<ScratchTensor> inputs_;                     // [L]
  std::vector<std::unique_ptr<Place>> places_;            // [L], or one
  std::vector<ops::RouterStatistics> router_statistics_;  // [L]
};

}  // namespace switchyard::model
