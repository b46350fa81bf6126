#include "tests/lab/routing/corrected_estimator.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard {

CorrectedEstimator::CorrectedEstimator(std::unique_ptr<Estimator> inner, RoutingShape shape)
    : inner_(std::move(inner)),
      name_(absl::StrCat(inner_->name(), "_corrected")),
      corrections_(static_cast<size_t>(shape.num_layers), ShareCorrection(shape.num_experts)) {}

bool CorrectedEstimator::Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const {
  Popularity estimate(popularity.size());
  if (!inner_->Estimate(batch, layer, absl::MakeSpan(estimate))) return false;
  corrections_[static_cast<size_t>(layer)].Apply(absl::MakeSpan(estimate));
  for (size_t e = 0; e < estimate.size(); ++e) popularity[e] += estimate[e];
  return true;
}

void CorrectedEstimator::Observe(const RoutingView& batch, int layer) {
  const Popularity actual = CountsOf(batch, layer);
  Popularity estimate(actual.size());
  if (inner_->Estimate(batch, layer, absl::MakeSpan(estimate)))
    corrections_[static_cast<size_t>(layer)].Update(estimate, actual, TotalOf(actual));
  inner_->Observe(batch, layer);
}

}  // namespace switchyard
