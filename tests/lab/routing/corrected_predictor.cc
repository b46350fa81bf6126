#include "tests/lab/routing/corrected_predictor.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard {

CorrectedPredictor::CorrectedPredictor(std::unique_ptr<popularity::LoadPredictor> inner, popularity::RoutingShape shape)
    : inner_(std::move(inner)),
      name_(absl::StrCat(inner_->name(), "_corrected")),
      corrections_(static_cast<size_t>(shape.num_layers), popularity::ShareCorrection(shape.num_experts)) {}

bool CorrectedPredictor::Estimate(const popularity::RoutingView& batch, int layer,
                                  absl::Span<int64_t> popularity) const {
  popularity::Popularity estimate(popularity.size());
  if (!inner_->Estimate(batch, layer, absl::MakeSpan(estimate))) return false;
  corrections_[static_cast<size_t>(layer)].Apply(absl::MakeSpan(estimate));
  for (size_t e = 0; e < estimate.size(); ++e) popularity[e] += estimate[e];
  return true;
}

void CorrectedPredictor::Observe(const popularity::RoutingView& batch, int layer) {
  const popularity::Popularity actual = popularity::CountsOf(batch, layer);
  popularity::Popularity estimate(actual.size());
  if (inner_->Estimate(batch, layer, absl::MakeSpan(estimate)))
    corrections_[static_cast<size_t>(layer)].Update(estimate, actual, popularity::TotalOf(actual));
  inner_->Observe(batch, layer);
}

}  // namespace switchyard
