#include "scheduler/popularity/predictors/calibrated_predictor.h"

#include <algorithm>

#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::popularity {

CalibratedPredictor::CalibratedPredictor(const ObservedPredictor* said, const PathProfile* profile, int min_tokens)
    : said_(said), profile_(profile), min_tokens_(min_tokens) {
  SY_CHECK(profile_->identity().context == ContextKind::kPredicted);
  SY_CHECK_GE(min_tokens_, 1);
}

bool CalibratedPredictor::SharesOf(const RoutingView& batch, int64_t t, int layer, absl::Span<int64_t> share) const {
  const auto width = static_cast<size_t>(said_->num_predicted(layer));
  const absl::Span<const int16_t> said = said_->predictions(layer).subspan(static_cast<size_t>(t) * width, width);
  if (said[0] < 0) return false;
  const int32_t row = profile_->FindRow(batch, t, layer, kMaxPathLength, min_tokens_, said);
  if (row != PathProfile::kMarginal) return profile_->SharesOf(layer, row, share);
  std::fill(share.begin(), share.end(), 0);
  for (const int16_t expert : said.first(std::min(width, static_cast<size_t>(batch.shape.top_k))))
    if (expert >= 0) share[static_cast<size_t>(expert)] = kRow / batch.shape.top_k;
  return true;
}

Popularity CalibratedPredictor::Estimate(const RoutingView& batch, int layer) const {
  if (said_->predictions(layer).empty()) return {};
  SY_CHECK_EQ(static_cast<int64_t>(said_->predictions(layer).size()), batch.num_tokens * said_->num_predicted(layer));
  Popularity share(static_cast<size_t>(batch.shape.num_experts)), sum(share.size());
  bool any = false;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    if (!SharesOf(batch, t, layer, absl::MakeSpan(share))) continue;
    any = true;
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += share[e];
  }
  return any ? ScaledTo(sum, batch.num_rows() * kRow) : Popularity();
}

}  // namespace switchyard::popularity
