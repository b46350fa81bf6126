// Several estimators as one: the weighted mean of those that have an estimate, each weighted by how right it was
// lately.
//
// The weight is the inverse fourth power of the running total-variation distance (1/16 of it renewed by each batch), so
// that an estimator twice as far off counts a sixteenth: their errors are alike, so the good one must rule (the inverse
// square was never better, README.md).  Per layer.  Integers only.
// Observe asks the inner estimators once more, before they observe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/popularity/predictors/estimate_score.h"
#include "scheduler/popularity/predictors/load_predictor.h"

namespace switchyard::popularity {

class BlendPredictor : public LoadPredictor {
 public:
  BlendPredictor(std::vector<std::unique_ptr<LoadPredictor>> inner, RoutingShape shape);

  absl::string_view name() const override { return "blend"; }
  // False where none of them has an estimate.
  bool Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const override;
  void Observe(const RoutingView& batch, int layer) override;

 private:
  int64_t WeightOf(size_t j, int layer) const;

  std::vector<std::unique_ptr<LoadPredictor>> inner_;  // [J]
  std::vector<std::vector<RunningMean>> distance_;     // [L][J]
};

}  // namespace switchyard::popularity
