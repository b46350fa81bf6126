#include "tests/lab/routing/corrected_predictor.h"

#include <utility>

namespace switchyard {

CorrectedPredictor::CorrectedPredictor(std::unique_ptr<LoadPredictor> inner, popularity::RoutingShape shape)
    : inner_(std::move(inner)),
      corrections_(static_cast<size_t>(shape.num_layers), ShareCorrection(shape.num_experts)) {}

popularity::Popularity CorrectedPredictor::Estimate(const popularity::RoutingView& batch, int layer) const {
  popularity::Popularity estimate = inner_->Estimate(batch, layer);
  if (!estimate.empty()) corrections_[static_cast<size_t>(layer)].Apply(absl::MakeSpan(estimate));
  return estimate;
}

void CorrectedPredictor::Observe(const popularity::RoutingView& batch, int layer) {
  const popularity::Popularity actual = popularity::CountsOf(batch, layer);
  const popularity::Popularity estimate = inner_->Estimate(batch, layer);
  if (!estimate.empty()) corrections_[static_cast<size_t>(layer)].Update(estimate, actual, popularity::TotalOf(actual));
  inner_->Observe(batch, layer);
}

}  // namespace switchyard
