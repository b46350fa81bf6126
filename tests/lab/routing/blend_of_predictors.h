// The blend of several estimators (BlendPredictor), as an estimator.
//
// Observe asks the inner estimators once more, before they observe.
#pragma once

#include <memory>
#include <vector>

#include "tests/lab/routing/blend_predictor.h"
#include "tests/lab/routing/load_predictor.h"

namespace switchyard {

class BlendOfPredictors final : public LoadPredictor {
 public:
  BlendOfPredictors(std::vector<std::unique_ptr<LoadPredictor>> inner, popularity::RoutingShape shape);

  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const override;
  void Observe(const popularity::RoutingView& batch, int layer) override;

 private:
  std::vector<popularity::Popularity> EstimatesOf(const popularity::RoutingView& batch, int layer) const;

  std::vector<std::unique_ptr<LoadPredictor>> inner_;  // [J]
  BlendPredictor blend_;
};

}  // namespace switchyard
