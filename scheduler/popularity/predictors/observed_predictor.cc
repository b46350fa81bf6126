#include "scheduler/popularity/predictors/observed_predictor.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::popularity {

ObservedPredictor::ObservedPredictor(std::string name, RoutingShape shape)
    : name_(std::move(name)), shape_(shape), statements_(static_cast<size_t>(shape.num_layers)) {}

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

void ObservedPredictor::SetCounts(int layer, absl::Span<const int64_t> counts) {
  SY_CHECK_EQ(static_cast<int>(counts.size()), shape_.num_experts);
  statements_[static_cast<size_t>(layer)] = {
      .num_predicted = 0, .predictions = {}, .counts = Popularity(counts.begin(), counts.end())};
}

bool ObservedPredictor::Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const {
  const Statement& statement = statements_[static_cast<size_t>(layer)];
  if (statement.counts.empty() || TotalOf(statement.counts) == 0) return false;
  const Popularity scaled = ScaledTo(statement.counts, batch.num_tokens * batch.shape.top_k * kRow);
  for (size_t e = 0; e < scaled.size(); ++e) popularity[e] += scaled[e];
  return true;
}

void ObservedPredictor::Observe(const RoutingView& /*batch*/, int layer) {
  statements_[static_cast<size_t>(layer)] = Statement();
}

bool ObservedPredictor::Predict(const RoutingView& batch, int layer, int num_predicted,
                                absl::Span<int16_t> predicted) const {
  const Statement& statement = statements_[static_cast<size_t>(layer)];
  if (statement.predictions.empty()) return false;
  SY_CHECK_EQ(static_cast<int64_t>(statement.predictions.size()), batch.num_tokens * statement.num_predicted);
  SY_CHECK_EQ(static_cast<int64_t>(predicted.size()), batch.num_tokens * num_predicted);
  std::fill(predicted.begin(), predicted.end(), int16_t{-1});
  const int64_t said = statement.num_predicted, taken = std::min<int64_t>(said, num_predicted);
  for (int64_t t = 0; t < batch.num_tokens; ++t)
    std::copy_n(statement.predictions.begin() + t * said, taken, predicted.begin() + t * num_predicted);
  return true;
}

}  // namespace switchyard::popularity
