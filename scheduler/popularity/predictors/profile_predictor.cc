#include "scheduler/popularity/predictors/profile_predictor.h"

#include <algorithm>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::popularity {
namespace {

void KeepTop(int n, absl::Span<int64_t> share) {
  Popularity kept(share.size());
  for (const int32_t expert : TopExperts(share, n))
    kept[static_cast<size_t>(expert)] = share[static_cast<size_t>(expert)];
  std::copy(kept.begin(), kept.end(), share.begin());
}

}  // namespace

ProfilePredictor::ProfilePredictor(const PathProfile* profile, ProfilePredictorOptions options)
    : profile_(profile), options_(options) {
  SY_CHECK_GE(options_.min_tokens, 1);
  SY_CHECK_GE(options_.max_length, 0);
}

bool ProfilePredictor::KnowsLayer(const RoutingView& batch, int layer) const {
  SY_CHECK(batch.shape == profile_->identity().shape);
  const bool is_path = profile_->identity().context == ContextKind::kPath;
  if (options_.max_length > 0 && (is_path ? layer == 0 : batch.token_ids == nullptr)) return false;
  const absl::Span<const int64_t> marginal = profile_->MarginalCounts(layer);
  return std::any_of(marginal.begin(), marginal.end(), [](int64_t count) { return count > 0; });
}

int32_t ProfilePredictor::RowOf(const RoutingView& batch, int64_t t, int layer) const {
  return options_.max_length == 0 ? PathProfile::kMarginal
                                  : profile_->FindRow(batch, t, layer, options_.max_length, options_.min_tokens);
}

Popularity ProfilePredictor::Estimate(const RoutingView& batch, int layer) const {
  if (!KnowsLayer(batch, layer)) return {};
  std::vector<int32_t> rows(static_cast<size_t>(batch.num_tokens));
  for (int64_t t = 0; t < batch.num_tokens; ++t) rows[static_cast<size_t>(t)] = RowOf(batch, t, layer);
  std::sort(rows.begin(), rows.end());
  Popularity share(static_cast<size_t>(batch.shape.num_experts)), sum(share.size());
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end] == rows[begin]) ++end;
    SY_CHECK(profile_->SharesOf(layer, rows[begin], absl::MakeSpan(share)));
    if (options_.mask_to_top_k) KeepTop(batch.shape.top_k, absl::MakeSpan(share));
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += static_cast<int64_t>(end - begin) * share[e];
  }
  return ScaledTo(sum, batch.num_rows() * kRow);
}

}  // namespace switchyard::popularity
