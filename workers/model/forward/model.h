// A decoder-only MoE model on one rank: weights, RoPE table, scratch, and the forward pass.
//
// Thread-compatible; work inside is parallel over the stream's pool.  Every rank of the group must call Forward for the
// same layers in the same step, also with an empty batch, because MoE layers exchange rows.  Scratch is kept from call
// to call: a steady step allocates nothing.  A row's results do not depend on the other rows, on chunking, threads or
// the number of ranks. Errors: the communicator's (Unavailable, DeadlineExceeded …), which leave the step undone;
// InvalidArgument for a batch that does not fit the cache; Internal "layer L: …" under SY_CHECK_NAN. Does not do:
// sampling and slots (model_runner.h), backward (model_backward.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/attention_layer.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/forward/training_noise.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/model/weights/weights.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

// Receives logits of batch.logit_rows[first, first + logits.dim(0)): [n, V] fp32 (fp64 for an fp64 model), valid until
// it returns.  Called with rising `first`, at most kHeadRows rows at a time, so that long prompts need no more memory.
using LogitsSink = absl::FunctionRef<absl::Status(int64_t first, const TensorView& logits)>;
inline constexpr int64_t kHeadRows = 64;

// Receives the residual stream after ("embed", -1), then for each layer after ("attention", i) and ("layer", i).
using ResidualTap = absl::FunctionRef<void(const char* name, int64_t layer_idx, const TensorView& residual)>;

struct StageIn {
  const Batch* batch = nullptr;            // borrowed
  const moe::MoeContext* moe = nullptr;    // borrowed; its stream is the pass's
  TokenRebalancer* rebalancing = nullptr;  // borrowed, begun with this batch; null: no rows are given away
  TensorView hidden = {};                  // [T, H] of the stage before; rank 0: this stage embeds batch->tokens
  const TrainingNoise* noise = nullptr;    // borrowed; of the batch's rows; null: none
  bool keep_topk = false;                  // fill StageOut::topk_idx
  std::optional<LogitsSink> logits = {};   // receives the last stage's logits; none: no head
  std::optional<ResidualTap> tap = {};     // for tests and debugging
};

struct StageOut {
  TensorView hidden;  // [T, H] AccDType residual after the last layer; the model's scratch, valid until the next call
  TensorView expert_counts;      // [L, E] int32 of this rank's rows, on the stream's device; the model's, as hidden
  TensorView decode_counts;      // the same of the decoded rows; rank 0: no row is one, or all are
  TensorView topk_idx;           // [MoE layers, T, K] int32 that the computed rows chose, if kept; as expert_counts
  double attention_seconds = 0;  // without waiting for rows that were given away
  double head_seconds = 0;       // the sink included
};

struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class Model {
 public:
  // Takes the weights, which are on the stream's device.  max_positions: of the RoPE table, the served context.
  // experts: borrowed; provides the routed experts, which the weights lack then.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Stream& stream, const ModelConfig& config, DType dtype,
                                                       ModelWeights weights, int64_t max_positions,
                                                       moe::ExpertWeightProvider* experts = nullptr);
  // Allocates scratch for steps of so many rows, which else grows with the largest step.  Errors: ResourceExhausted.
  absl::Status Reserve(int64_t rows);
  // The same for the experts and the exchange of a group.
  absl::Status ReserveExchange(const moe::MoeCapacity& room);
  // The same for steps that are recorded: one of at most room.rows then moves no scratch of another's graph.
  absl::Status ReserveRecorded(const moe::MoeCapacity& room);

  // saved: receives what backward needs, begun with the batch's rows; null: inference.  Same bits, same collectives.
  // Unimplemented with it: a device, rows that are given away, a load balancer, a load predictor, experts from a store.
  absl::StatusOr<StageOut> Forward(const StageIn& in, LayerRange layers, KvCache* cache, SavedForward* saved);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  // Null: the weights have the routed experts.
  moe::ExpertWeightProvider* experts() const { return experts_; }
  // For training, between passes: values may change, shapes may not.
  ModelWeights* mutable_weights() { return &weights_; }
  // For training, between passes: replaces this rank's experts.  experts: [MoE layers] by slot.
  // REQUIRES: on the CPU, without an ExpertWeightProvider.
  void ReplaceExperts(const Stream& stream, std::vector<int32_t> residents,
                      std::vector<std::vector<FfnWeights>> experts);
  const moe::MoeLayer* moe_layer(int64_t layer_idx) const {  // null: a dense layer
    return moe_layers_[layer_idx].has_value() ? &*moe_layers_[layer_idx] : nullptr;
  }
  // The number of MoE layers before this one.
  int moe_index(int64_t layer_idx) const { return moe_idx_[layer_idx]; }
  // That rows choose from.
  size_t num_adapters() const { return weights_.adapters.empty() ? 0 : weights_.adapters.front().size(); }
  DType dtype() const { return dtype_; }
  int64_t max_positions() const { return rope_.max_positions(); }
  const ops::RopeTable& rope() const { return rope_; }
  LayerRange all_layers() const { return {0, config_.num_layers()}; }

 private:
  Model(const ModelConfig& config, DType dtype, ModelWeights weights, ops::RopeTable rope, Device device);
  absl::Status MakeMoeLayers(const Stream& stream, moe::ExpertWeightProvider* experts);
  absl::Status ReserveLayers(moe::MoeCapacity room, moe::MoeExecutor* executor) const;

  absl::Status Embed(const Stream& stream, const Batch& batch, const TensorView& residual);
  absl::Status EmbedTied(const Stream& stream, const Batch& batch, const TensorView& residual);
  // One layer of a pass.  Borrowed.
  struct LayerCall {
    const StageIn* in = nullptr;
    int64_t layer_idx = 0;
    KvCache* cache = nullptr;
    TensorView residual;
    const SavedLayer* saved = nullptr;  // null: nothing is kept
    StageOut* out = nullptr;
  };
  absl::Status CheckSaving(const StageIn& in, const SavedForward& saved) const;
  absl::Status RunLayer(const Stream& stream, const LayerCall& call);
  absl::Status RunFfn(const Stream& stream, const LayerCall& call);
  // y += feed-forward(norm(residual))
  absl::Status AddFfn(const Stream& stream, const LayerCall& call, const TensorView& y);
  absl::Status TakeTopK(const StageIn& in, StageOut* out);
  absl::Status KeepTopK(const Stream& stream, const StageIn& in, int64_t layer_idx, const TensorView& topk_idx);
  absl::Status RunHead(const Stream& stream, const Batch& batch, const TensorView& residual, LogitsSink sink);

  const ModelConfig config_;
  const DType dtype_;
  ModelWeights weights_;
  const ops::RopeTable rope_;
  const bool check_nan_;
  moe::ExpertWeightProvider* experts_ = nullptr;
  AttentionLayer attention_;
  std::vector<std::optional<moe::MoeLayer>> moe_layers_;  // [L]
  std::vector<int> moe_idx_;                              // [L] MoE layers before this one
  moe::MoeExecutor moe_executor_, recorded_executor_;

  ScratchTensor residual_;      // [T, H] AccDType
  ScratchTensor normed_;        // [T, H]
  ScratchTensor dense_hidden_;  // [T, dense_intermediate]
  ScratchTensor added_;         // [T, H] AccDType: a feed-forward's output, with dropout
  ScratchTensor head_rows_;     // [kHeadRows, H] AccDType
  ScratchTensor logits_;        // [kHeadRows, V] AccDType
  ScratchTensor counts_;        // [2 * L, E] int32
  ScratchTensor topk_;          // [MoE layers * T, K] int32
  std::vector<int32_t> row_ids_;
};

}  // namespace switchyard::model
