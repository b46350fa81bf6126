// The backward pass of a model: from the gradient of the last layer's residual stream to those of all parameters.
//
// Runs the layers of Model::Forward in falling order, from what it kept (saved_forward.h).  Every rank of the group
// must call Run for the same layers, also with an empty batch: gradients of expert rows travel as rows did.  Gradients,
// sums over this rank's rows (experts': over all rows that came to them), are added to, so that micro-batches
// accumulate. The bits depend on the rows and how ranks share them, never on threads. Scratch is kept from call to
// call.  Thread-compatible.  CPU only. Errors: the communicator's; InvalidArgument for gradients that do not fit the
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/model/backward/backward_stages.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/forward/adapter_products.h"
#include "workers/model/forward/model.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/ops/attention/attention_backward.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct BackwardIn {
  StageIn forward;                            // the pass's, with statistics of its own; without logits
  KvCache* cache = nullptr;                   // borrowed, as are the next
  SavedForward* saved = nullptr;              // of that pass
  const ModelGradients* gradients = nullptr;  // added to
  // Where the embedding's gradient is added instead: row embedding_slots[t] of these for row t.  Rank 0: it is not.
  TensorView embedding_rows = {};                        // [n, H] AccDType
  IntView embedding_slots = {};                          // [T] in [0, n)
  absl::Span<const moe::RouterLoss> router_losses = {};  // [L]; empty: none has one
  // Called after each stage, in the order of BackwardStages, also without rows.  LossHead must have run before.  May be
  // null.
  std::function<void(const BackwardStage&)> on_stage = nullptr;
};

class ModelBackward {
 public:
  // model: borrowed, must outlive this.
  explicit ModelBackward(Model* model);

  // d_residual: in: the gradient of the residual stream after layers.end; out: of that before layers.begin.  With
  // layers.begin == 0 also adds the embedding's gradient.
  absl::Status Run(const BackwardIn& in, LayerRange layers,
                   const TensorView& d_residual);  // [T, H] AccDType

 private:
  // One layer of a pass.  Borrowed.
  struct LayerCall {
    const Stream& stream;
    const BackwardIn& in;
    int64_t layer_idx;
    SavedLayer saved;
    TensorView d_residual;
    LayerNoise noise() const { return {in.forward.noise, layer_idx}; }
  };
  absl::Status RunLayer(const LayerCall& call);
  absl::Status RunOutProjection(const LayerCall& call);
  absl::Status RunAttention(const LayerCall& call);
  absl::Status RunDense(const LayerCall& call);
  absl::Status RunMoe(const LayerCall& call);
  // Repeats the forward pass of a layer that kept only its input.
  absl::Status RunAgain(const BackwardIn& in, int64_t layer_idx);
  // Returns the gradient of the residual stream in the model's dtype, dropped as the layer's output was.
  absl::StatusOr<TensorView> Rounded(const Stream& stream, const ops::NoiseDesc& dropout, const TensorView& d_residual);

  Model* const model_;
  moe::MoeBackward moe_;
  AdapterProducts adapters_;
  std::vector<ops::WholeSequence> sequences_;  // of the pass
  ScratchTensor x_;                            // [T, H] normalized rows, made again
  ScratchTensor d_x_;                          // [T, H] their gradient
  ScratchTensor d_out_;                        // [T, H] model dtype: d_residual, rounded, perhaps dropped
  ScratchTensor dropped_;                      // [T, H] AccDType: d_residual, dropped
  ScratchTensor d_attended_;                   // [T, N*D]
  ScratchTensor d_qkv_;                        // [T, N*D + 2*Nkv*D]
  ScratchTensor d_hidden_;                     // [T, F] of dense layers
  ScratchTensor d_sums_;                       // [T, 2F]; GELU: [T, F]
};

}  // namespace switchyard::model
