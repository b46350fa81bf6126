// The end of a training pass: final norm, lm_head and cross-entropy, and their backward, some rows at a time, so that
// the logits of a batch never need memory of their own.
//
//   loss = Σ_t -log softmax(lm_head · norm(residual[t]))[target[t]]   over rows whose target is not negative
//
// scale: what the gradient of this sum is multiplied with: 1 / (unmasked tokens of all ranks), times what accumulation
// asks for.  Sums are in double, in a fixed order.  Thread-compatible.  CPU only.
// Errors: InvalidArgument "target …" for one that is no token.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct LossSum {
  double loss = 0;     // Σ over the rows that count
  int64_t tokens = 0;  // how many do
};

class LossHead {
 public:
  // model: borrowed, must outlive this.
  explicit LossHead(const Model* model);

  // The loss alone.
  absl::StatusOr<LossSum> Evaluate(const Stream& stream, const TensorView& residual,  // [T, H] AccDType
                                   const IntView& targets);                           // [T]
  // Also writes d_residual and adds to the gradients of lm_head and final_norm.
  absl::StatusOr<LossSum> Run(const Stream& stream, const TensorView& residual, const IntView& targets, double scale,
                              const ModelGradients& gradients, const TensorView& d_residual);  // [T, H] AccDType

 private:
  // Of at most kLossRows rows; gradients null: the loss alone.
  struct Part {
    TensorView residual, d_residual = {};
    IntView targets = {};
    double scale = 0;
    const ModelGradients* gradients = nullptr;
  };
  absl::StatusOr<LossSum> RunPart(const Stream& stream, const Part& part);

  const Model* const model_;
  ScratchTensor x_, d_x_;   // [kLossRows, H]
  ScratchTensor logits_;    // [kLossRows, V] AccDType
  ScratchTensor d_logits_;  // [kLossRows, V], unless they are logits_
};

// Enough for the products to run at their rate; few enough for the logits to stay small.
inline constexpr int64_t kLossRows = 256;

}  // namespace switchyard::model
