#include "scheduler/popularity/predictors/observed_predictor.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::popularity {

void ObservedPredictor::SetPredictions(int layer, int num_predicted, absl::Span<const int16_t> predictions) {
  SY_CHECK_GE(num_predicted, 1);
  const auto width = static_cast<size_t>(num_predicted);
  SY_CHECK_EQ(predictions.size() % width, 0u);
  Statement& statement = statements_[static_cast<size_t>(layer)];
  statement.num_predicted = num_predicted;
  statement.predictions.assign(predictions.begin(), predictions.end());
  statement.counts.assign(static_cast<size_t>(shape_.num_experts), 0);
  const size_t chosen = std::min(width, static_cast<size_t>(shape_.top_k));
  for (size_t begin = 0; begin < predictions.size(); begin += width) {
    for (const int16_t expert : predictions.subspan(begin, chosen)) {
      SY_CHECK(expert < shape_.num_experts);
      if (expert >= 0) ++statement.counts[static_cast<size_t>(expert)];
    }
  }
}

Popularity ObservedPredictor::Estimate(const RoutingView& batch, int layer) const {
  const Popularity& counts = statements_[static_cast<size_t>(layer)].counts;
  return TotalOf(counts) == 0 ? Popularity() : ScaledTo(counts, batch.num_rows() * kRow);
}

}  // namespace switchyard::popularity
