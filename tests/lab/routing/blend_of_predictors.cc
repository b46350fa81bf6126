#include "tests/lab/routing/blend_of_predictors.h"

#include <utility>

namespace switchyard {
namespace {

std::vector<const popularity::Popularity*> PointersTo(const std::vector<popularity::Popularity>& estimates) {
  std::vector<const popularity::Popularity*> pointers;
  for (const popularity::Popularity& estimate : estimates) pointers.push_back(&estimate);
  return pointers;
}

}  // namespace

BlendOfPredictors::BlendOfPredictors(std::vector<std::unique_ptr<LoadPredictor>> inner, popularity::RoutingShape shape)
    : inner_(std::move(inner)), blend_(shape.num_layers, inner_.size()) {}

std::vector<popularity::Popularity> BlendOfPredictors::EstimatesOf(const popularity::RoutingView& batch,
                                                                   int layer) const {
  std::vector<popularity::Popularity> estimates;
  for (const std::unique_ptr<LoadPredictor>& predictor : inner_) {
    estimates.push_back(predictor->Estimate(batch, layer));
  }
  return estimates;
}

popularity::Popularity BlendOfPredictors::Estimate(const popularity::RoutingView& batch, int layer) const {
  return blend_.Estimate(layer, PointersTo(EstimatesOf(batch, layer)), batch.num_rows() * popularity::kRow);
}

void BlendOfPredictors::Observe(const popularity::RoutingView& batch, int layer) {
  blend_.Observe(layer, PointersTo(EstimatesOf(batch, layer)), popularity::CountsOf(batch, layer));
  for (const std::unique_ptr<LoadPredictor>& predictor : inner_) predictor->Observe(batch, layer);
}

}  // namespace switchyard
