#include "workers/model/backward/loss_head.h"

#include <algorithm>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/forward/model_norm.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/optimizer/cross_entropy.h"

namespace switchyard::model {

namespace {

LossSum SumOf(const IntView& targets, const LossSegment& all) {
  LossSum sum = {.loss = all.loss};
  for (int64_t i = 0; i < targets.size(); ++i) sum.tokens += targets.data()[i] >= 0 ? 1 : 0;
  return sum;
}

}  // namespace

LossHead::LossHead(const Model* model) : model_(model) {
  const ModelConfig& config = model->config();
  x_ = ScratchTensor(model->dtype(), {config.hidden});
  d_x_ = ScratchTensor(model->dtype(), {config.hidden});
  logits_ = ScratchTensor(AccDType(model->dtype()), {config.vocab_size});
  d_logits_ = ScratchTensor(model->dtype(), {config.vocab_size});
}

absl::Status LossHead::RunPart(const Stream& stream, const Part& part) {
  const int64_t rows = part.residual.dim(0);
  const ModelWeights& weights = model_->weights();
  const NormViews norm = {weights.final_norm, weights.final_norm_bias};
  const TensorView x = x_.Rows(rows), logits = logits_.Rows(rows);
  RETURN_IF_ERROR(Normalize(stream, model_->config(), norm, part.residual, x));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, weights.lm_head, TensorView(), logits));
  const bool backward = part.gradients != nullptr;
  // The gradient overwrites the logits where the dtypes are the same.
  const TensorView d_logits = !backward ? TensorView() : logits.dtype() == x.dtype() ? logits : d_logits_.Rows(rows);
  LossSegment* segment = part.segments.data();
  for (int64_t first = 0, done = part.done; first < rows; ++segment, done = 0) {
    const int64_t count = std::min(rows - first, segment->rows - done);
    ASSIGN_OR_RETURN(
        segment->loss,
        ops::CrossEntropy(stream, segment->scale, logits.Rows(first, count), part.targets.Part(first, count),
                          backward ? d_logits.Rows(first, count) : d_logits, segment->loss));
    first += count;
  }
  if (backward) {
    const ModelGradients& gradients = *part.gradients;
    const TensorView d_x = d_x_.Rows(rows);
    RETURN_IF_ERROR(ops::WeightGradient(stream, d_logits, x, gradients.lm_head.gradient));
    RETURN_IF_ERROR(ops::Gemm(stream, {}, d_logits, *gradients.lm_head.transposed, TensorView(), d_x));
    RETURN_IF_ERROR(NormalizeBackward(stream, model_->config(),
                                      {.weights = norm, .gradients = {gradients.final_norm, gradients.final_norm_bias}},
                                      part.residual, d_x, part.d_residual));
  }
  return absl::OkStatus();
}

absl::Status LossHead::RunParts(const Stream& stream, const Part& all) {
  int64_t rows = 0;
  for (LossSegment& segment : all.segments) {
    segment.loss = 0;
    rows += segment.rows;
  }
  SY_CHECK_EQ(rows, all.residual.dim(0));
  size_t segment = 0;
  int64_t done = 0;  // rows of it
  for (int64_t first = 0; first < all.residual.dim(0); first += kLossRows) {
    const int64_t count = std::min(kLossRows, all.residual.dim(0) - first);
    Part part = all;
    part.residual = all.residual.Rows(first, count);
    part.targets = all.targets.Part(first, count);
    if (all.gradients != nullptr) part.d_residual = all.d_residual.Rows(first, count);
    part.segments = all.segments.subspan(segment);
    part.done = done;
    RETURN_IF_ERROR(RunPart(stream, part));
    for (done += count; segment < all.segments.size() && done >= all.segments[segment].rows; ++segment) {
      done -= all.segments[segment].rows;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LossSum> LossHead::Evaluate(const Stream& stream, const TensorView& residual, const IntView& targets) {
  LossSegment all = {.rows = residual.dim(0)};
  RETURN_IF_ERROR(EvaluateSegments(stream, residual, targets, absl::MakeSpan(&all, 1)));
  return SumOf(targets, all);
}

absl::Status LossHead::EvaluateSegments(const Stream& stream, const TensorView& residual, const IntView& targets,
                                        absl::Span<LossSegment> segments) {
  return RunParts(stream, {.residual = residual, .targets = targets, .segments = segments});
}

absl::StatusOr<LossSum> LossHead::Run(const Stream& stream, const TensorView& residual, const IntView& targets,
                                      double scale, const ModelGradients& gradients, const TensorView& d_residual) {
  LossSegment all = {.rows = residual.dim(0), .scale = scale};
  RETURN_IF_ERROR(RunSegments(stream, residual, targets, gradients, d_residual, absl::MakeSpan(&all, 1)));
  return SumOf(targets, all);
}

absl::Status LossHead::RunSegments(const Stream& stream, const TensorView& residual, const IntView& targets,
                                   const ModelGradients& gradients, const TensorView& d_residual,
                                   absl::Span<LossSegment> segments) {
  return RunParts(stream, {.residual = residual,
                           .d_residual = d_residual,
                           .targets = targets,
                           .segments = segments,
                           .gradients = &gradients});
}

}  // namespace switchyard::model
