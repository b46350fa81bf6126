#include "tests/lab/routing/token_predictions.h"

#include <algorithm>

#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard {

std::vector<int16_t> PredictTokens(const popularity::ProfilePredictor& predictor,
                                   const popularity::PathProfile& profile, const popularity::RoutingView& batch,
                                   int layer, int num_predicted) {
  popularity::Popularity share(static_cast<size_t>(batch.shape.num_experts));
  std::vector<int16_t> predicted(static_cast<size_t>(batch.num_tokens * num_predicted), -1);
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    SY_CHECK(profile.SharesOf(layer, predictor.RowOf(batch, t, layer), absl::MakeSpan(share)));
    int16_t* next = predicted.data() + t * num_predicted;
    for (const int32_t expert : popularity::TopExperts(share, num_predicted))
      if (share[static_cast<size_t>(expert)] > 0) *next++ = static_cast<int16_t>(expert);
  }
  return predicted;
}

std::vector<int16_t> PredictTokens(const popularity::ObservedPredictor& said, const popularity::RoutingView& batch,
                                   int layer, int num_predicted) {
  const absl::Span<const int16_t> predictions = said.predictions(layer);
  const int64_t width = said.num_predicted(layer), taken = std::min<int64_t>(width, num_predicted);
  SY_CHECK_EQ(static_cast<int64_t>(predictions.size()), batch.num_tokens * width);
  std::vector<int16_t> predicted(static_cast<size_t>(batch.num_tokens * num_predicted), -1);
  for (int64_t t = 0; t < batch.num_tokens; ++t)
    std::copy_n(predictions.begin() + t * width, taken, predicted.begin() + t * num_predicted);
  return predicted;
}

std::vector<int16_t> PredictTokens(const popularity::CalibratedPredictor& predictor,
                                   const popularity::ObservedPredictor& said, const popularity::RoutingView& batch,
                                   int layer, int num_predicted) {
  std::vector<int16_t> predicted = PredictTokens(said, batch, layer, num_predicted);
  popularity::Popularity share(static_cast<size_t>(batch.shape.num_experts));
  const auto width = static_cast<size_t>(num_predicted);
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    if (!predictor.SharesOf(batch, t, layer, absl::MakeSpan(share))) continue;
    const absl::Span<int16_t> own = absl::MakeSpan(predicted).subspan(static_cast<size_t>(t) * width, width);
    std::vector<int16_t> best;
    for (const int32_t expert : popularity::TopExperts(share, num_predicted))
      if (share[static_cast<size_t>(expert)] > 0) best.push_back(static_cast<int16_t>(expert));
    for (const int16_t expert : own)
      if (expert >= 0 && std::find(best.begin(), best.end(), expert) == best.end()) best.push_back(expert);
    best.resize(width, -1);
    std::copy(best.begin(), best.end(), own.begin());
  }
  return predicted;
}

}  // namespace switchyard
