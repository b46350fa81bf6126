#include "workers/model/backward/loss_head.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "workers/model/forward/model_norm.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/optimizer/cross_entropy.h"

namespace switchyard::model {

LossHead::LossHead(const Model* model) : model_(model) {
  const ModelConfig& config = model->config();
  x_ = ScratchTensor(model->dtype(), {config.hidden});
  d_x_ = ScratchTensor(model->dtype(), {config.hidden});
  logits_ = ScratchTensor(AccDType(model->dtype()), {config.vocab_size});
  d_logits_ = ScratchTensor(model->dtype(), {config.vocab_size});
}

absl::StatusOr<LossSum> LossHead::RunPart(const Stream& stream, const Part& part) {
  const int64_t rows = part.residual.dim(0);
  const ModelWeights& weights = model_->weights();
  const NormViews norm = {weights.final_norm, weights.final_norm_bias};
  const TensorView x = x_.Rows(rows), logits = logits_.Rows(rows);
  RETURN_IF_ERROR(Normalize(stream, model_->config(), norm, part.residual, x));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, weights.lm_head, TensorView(), logits));
  const bool backward = part.gradients != nullptr;
  // The gradient overwrites the logits where the dtypes are the same.
  const TensorView d_logits = !backward ? TensorView() : logits.dtype() == x.dtype() ? logits : d_logits_.Rows(rows);
  LossSum sum;
  ASSIGN_OR_RETURN(sum.loss, ops::CrossEntropy(stream, part.scale, logits, part.targets, d_logits));
  for (int64_t i = 0; i < rows; ++i) sum.tokens += part.targets.data()[i] >= 0 ? 1 : 0;
  if (backward) {
    const ModelGradients& gradients = *part.gradients;
    const TensorView d_x = d_x_.Rows(rows);
    RETURN_IF_ERROR(ops::WeightGradient(stream, d_logits, x, gradients.lm_head.gradient));
    RETURN_IF_ERROR(ops::Gemm(stream, {}, d_logits, *gradients.lm_head.transposed, TensorView(), d_x));
    RETURN_IF_ERROR(NormalizeBackward(stream, model_->config(),
                                      {.weights = norm, .gradients = {gradients.final_norm, gradients.final_norm_bias}},
                                      part.residual, d_x, part.d_residual));
  }
  return sum;
}

absl::StatusOr<LossSum> LossHead::RunParts(const Stream& stream, const Part& all) {
  LossSum sum;
  for (int64_t first = 0; first < all.residual.dim(0); first += kLossRows) {
    const int64_t count = std::min(kLossRows, all.residual.dim(0) - first);
    Part part = all;
    part.residual = all.residual.Rows(first, count);
    part.targets = all.targets.Part(first, count);
    if (all.gradients != nullptr) part.d_residual = all.d_residual.Rows(first, count);
    ASSIGN_OR_RETURN(const LossSum share, RunPart(stream, part));
    sum.loss += share.loss;
    sum.tokens += share.tokens;
  }
  return sum;
}

absl::StatusOr<LossSum> LossHead::Evaluate(const Stream& stream, const TensorView& residual, const IntView& targets) {
  return RunParts(stream, {.residual = residual, .targets = targets});
}

absl::StatusOr<LossSum> LossHead::Run(const Stream& stream, const TensorView& residual, const IntView& targets,
                                      double scale, const ModelGradients& gradients, const TensorView& d_residual) {
  return RunParts(
      stream,
      {.residual = residual, .d_residual = d_residual, .targets = targets, .scale = scale, .gradients = &gradients});
}

}  // namespace switchyard::model
