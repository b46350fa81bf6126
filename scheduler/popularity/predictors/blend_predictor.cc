#include "scheduler/popularity/predictors/blend_predictor.h"

#include <algorithm>
#include <utility>

namespace switchyard::popularity {
namespace {

// A distance below 1/256 is noise: it must not make one estimator all of the blend.
constexpr int64_t kLeastDistance = kWholeDistance / 256;

}  // namespace

BlendPredictor::BlendPredictor(std::vector<std::unique_ptr<LoadPredictor>> inner, RoutingShape shape)
    : inner_(std::move(inner)),
      distance_(static_cast<size_t>(shape.num_layers), std::vector<RunningMean>(inner_.size())) {}

int64_t BlendPredictor::WeightOf(size_t j, int layer) const {
  // With d in [2^12, 2^20] the quotient is in [2^8, 2^16] and its fourth power, scaled, in [1, 2^32].
  const int64_t distance = std::max(kLeastDistance, distance_[static_cast<size_t>(layer)][j].Mean());
  const int64_t quotient = (kWholeDistance << 8) / distance;
  const int64_t square = quotient * quotient >> 8;
  return square * square >> 16;
}

bool BlendPredictor::Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const {
  Popularity sum(popularity.size());
  bool any = false;
  for (size_t j = 0; j < inner_.size(); ++j) {
    Popularity estimate(popularity.size());
    if (!inner_[j]->Estimate(batch, layer, absl::MakeSpan(estimate))) continue;
    any = true;
    // Shares in 2^-24: with weights up to 2^32 and tens of estimators the sum stays within 64 bits.
    const Popularity share = ScaledTo(estimate, int64_t{1} << 24);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += share[e] * WeightOf(j, layer);
  }
  if (!any) return false;
  const Popularity scaled = ScaledTo(sum, batch.num_tokens * batch.shape.top_k * kRow);
  for (size_t e = 0; e < scaled.size(); ++e) popularity[e] += scaled[e];
  return true;
}

void BlendPredictor::Observe(const RoutingView& batch, int layer) {
  const Popularity actual = CountsOf(batch, layer);
  for (size_t j = 0; j < inner_.size(); ++j) {
    Popularity estimate(actual.size());
    if (TotalOf(actual) > 0 && inner_[j]->Estimate(batch, layer, absl::MakeSpan(estimate)))
      distance_[static_cast<size_t>(layer)][j].Add(DistanceOf(estimate, actual));
    inner_[j]->Observe(batch, layer);
  }
}

}  // namespace switchyard::popularity
