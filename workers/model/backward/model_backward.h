// The backward pass of a model: from the gradient of the last layer's residual stream to the gradients of all
// parameters.
//
// Walks the layers that Model::Forward ran, in falling order, by what it kept (saved_forward.h).  Every rank of the
// group must call Run for the same layers, also with an empty batch: gradients of expert rows travel as rows did.
// Gradients are sums over this rank's rows (of experts: over all rows that came to them) and are added to what is
// there, so that micro-batches accumulate.  Deterministic: the bits depend on the rows and how they are shared out to
// ranks, never on threads.
// Scratch is kept from call to call.  Thread-compatible.  CPU only.
// Errors: the communicator's; InvalidArgument for gradients that do not fit the model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/model/backward/backward_stages.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/forward/model.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/ops/attention/attention_backward.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct BackwardIn {
  StageIn forward;                            // as the pass got it, with statistics of its own; without logits
  KvCache* cache = nullptr;                   // borrowed, as are the next
  SavedForward* saved = nullptr;              // of that pass
  const ModelGradients* gradients = nullptr;  // added to
  absl::Span<const moe::RouterLoss> router_losses = {};  // [L]; empty: none has one
  // Is told of each stage as it is done, in the order of BackwardStages, also without rows; what LossHead adds must be
  // there before.  Null: nobody is.
  std::function<void(const BackwardStage&)> on_stage = nullptr;
};

class ModelBackward {
 public:
  // model: borrowed, must outlive this.
  explicit ModelBackward(Model* model);

  // d_residual: in: the gradient of the residual stream behind layers.end; out: of that before layers.begin.  With
  // layers.begin == 0 the embedding has its share, too.
  absl::Status Run(const BackwardIn& in, LayerRange layers,
                   const TensorView& d_residual);  // [T, H] AccDType

 private:
  absl::Status RunLayer(const Stream& stream, const BackwardIn& in, int64_t layer_idx, const TensorView& d_residual);
  absl::Status RunOutProjection(const Stream& stream, const BackwardIn& in, int64_t layer_idx, const SavedLayer& saved,
                                const TensorView& d_residual);
  absl::Status RunAttention(const Stream& stream, const BackwardIn& in, int64_t layer_idx, const SavedLayer& saved,
                            const TensorView& d_residual);
  absl::Status RunDense(const Stream& stream, const FfnWeights& weights, const ops::FfnGradients& gradients,
                        const SavedLayer& saved, const TensorView& d_out);
  absl::Status RunMoe(const BackwardIn& in, int64_t layer_idx, const SavedLayer& saved, const TensorView& d_residual);
  // The layer's forward pass, of which only its input was kept.
  absl::Status RunAgain(const BackwardIn& in, int64_t layer_idx);
  // The gradient of the residual stream as products read it.
  absl::StatusOr<TensorView> Rounded(const Stream& stream, const TensorView& d_residual);

  Model* const model_;
  moe::MoeBackward moe_;
  std::vector<ops::WholeSequence> sequences_;  // of the pass
  ScratchTensor x_;                            // [T, H] normalized rows, made again
  ScratchTensor d_x_;                          // [T, H] their gradient
  ScratchTensor d_out_;                        // [T, H] model dtype: d_residual, rounded
  ScratchTensor d_attended_;                   // [T, N*D]
  ScratchTensor d_qkv_;                        // [T, N*D + 2*Nkv*D]
  ScratchTensor d_hidden_;                     // [T, F] of dense layers
  ScratchTensor d_sums_;                       // [T, 2F]; GELU: [T, F]
};

}  // namespace switchyard::model
