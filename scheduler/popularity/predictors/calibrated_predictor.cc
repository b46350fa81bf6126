#include "scheduler/popularity/predictors/calibrated_predictor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::popularity {

CalibratedPredictor::CalibratedPredictor(std::unique_ptr<ObservedPredictor> inner, const PathProfile* profile,
                                         int min_tokens)
    : inner_(std::move(inner)),
      profile_(profile),
      min_tokens_(min_tokens),
      name_(absl::StrCat(inner_->name(), "_calibrated")) {
  SY_CHECK(profile_->identity().context == ContextKind::kPredicted);
  SY_CHECK_EQ(profile_->identity().channel, inner_->name());
  SY_CHECK_GE(min_tokens_, 1);
}

bool CalibratedPredictor::SharesOf(const RoutingView& batch, int64_t t, int layer, absl::Span<int64_t> share) const {
  const auto width = static_cast<size_t>(inner_->num_predicted(layer));
  const absl::Span<const int16_t> said = inner_->predictions(layer).subspan(static_cast<size_t>(t) * width, width);
  if (said[0] < 0) return false;
  const int32_t row = profile_->FindRow(batch, t, layer, kMaxPathLength, min_tokens_, said);
  if (row != PathProfile::kMarginal) return profile_->SharesOf(layer, row, share);
  std::fill(share.begin(), share.end(), 0);
  for (const int16_t expert : said.first(std::min(width, static_cast<size_t>(batch.shape.top_k))))
    if (expert >= 0) share[static_cast<size_t>(expert)] = kRow / batch.shape.top_k;
  return true;
}

bool CalibratedPredictor::Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const {
  if (inner_->predictions(layer).empty()) return false;
  SY_CHECK_EQ(static_cast<int64_t>(inner_->predictions(layer).size()), batch.num_tokens * inner_->num_predicted(layer));
  Popularity share(popularity.size()), sum(popularity.size());
  bool any = false;
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    if (!SharesOf(batch, t, layer, absl::MakeSpan(share))) continue;
    any = true;
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += share[e];
  }
  if (!any) return false;
  const Popularity scaled = ScaledTo(sum, batch.num_tokens * batch.shape.top_k * kRow);
  for (size_t e = 0; e < scaled.size(); ++e) popularity[e] += scaled[e];
  return true;
}

void CalibratedPredictor::Observe(const RoutingView& batch, int layer) { inner_->Observe(batch, layer); }

bool CalibratedPredictor::Predict(const RoutingView& batch, int layer, int num_predicted,
                                  absl::Span<int16_t> predicted) const {
  if (!inner_->Predict(batch, layer, num_predicted, predicted)) return false;
  Popularity share(static_cast<size_t>(batch.shape.num_experts));
  const auto width = static_cast<size_t>(num_predicted);
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    if (!SharesOf(batch, t, layer, absl::MakeSpan(share))) continue;
    const absl::Span<int16_t> own = predicted.subspan(static_cast<size_t>(t) * width, width);
    std::vector<int16_t> best;
    for (const int32_t expert : TopExperts(share, num_predicted))
      if (share[static_cast<size_t>(expert)] > 0) best.push_back(static_cast<int16_t>(expert));
    for (const int16_t expert : own)
      if (expert >= 0 && std::find(best.begin(), best.end(), expert) == best.end()) best.push_back(expert);
    best.resize(width, -1);
    std::copy(best.begin(), best.end(), own.begin());
  }
  return true;
}

}  // namespace switchyard::popularity
