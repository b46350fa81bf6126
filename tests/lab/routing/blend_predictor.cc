#include "tests/lab/routing/blend_predictor.h"

#include <algorithm>

namespace switchyard {
namespace {

// A distance below 1/256 is noise: it must not make one estimator all of the blend.
constexpr int64_t kLeastDistance = popularity::kWholeDistance / 256;

bool IsThere(const popularity::Popularity* estimate) { return estimate != nullptr && !estimate->empty(); }

}  // namespace

int64_t BlendPredictor::WeightOf(size_t j, int layer) const {
  // With d in [2^12, 2^20] the quotient is in [2^8, 2^16] and its fourth power, scaled, in [1, 2^32].
  const int64_t distance = std::max(kLeastDistance, distance_[static_cast<size_t>(layer)][j].Mean());
  const int64_t quotient = (popularity::kWholeDistance << 8) / distance;
  const int64_t square = quotient * quotient >> 8;
  return square * square >> 16;
}

popularity::Popularity BlendPredictor::Estimate(int layer, absl::Span<const popularity::Popularity* const> estimates,
                                                int64_t total) const {
  popularity::Popularity sum;
  for (size_t j = 0; j < estimates.size(); ++j) {
    if (!IsThere(estimates[j])) continue;
    // Shares in 2^-24: with weights up to 2^32 and tens of estimators the sum stays within 64 bits.
    const popularity::Popularity share = popularity::ScaledTo(*estimates[j], int64_t{1} << 24);
    sum.resize(share.size());
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += share[e] * WeightOf(j, layer);
  }
  return sum.empty() ? sum : popularity::ScaledTo(sum, total);
}

void BlendPredictor::Observe(int layer, absl::Span<const popularity::Popularity* const> estimates,
                             const popularity::Popularity& actual) {
  if (popularity::TotalOf(actual) == 0) return;
  for (size_t j = 0; j < estimates.size(); ++j) {
    if (IsThere(estimates[j]))
      distance_[static_cast<size_t>(layer)][j].Add(popularity::DistanceOf(*estimates[j], actual));
  }
}

}  // namespace switchyard
