#include "scheduler/popularity/predictors/best_predictor.h"

#include "scheduler/base/check.h"

namespace switchyard::popularity {

BestPredictor::BestPredictor(int num_layers, int num_predictors)
    : layers_(static_cast<size_t>(num_layers),
              Layer{.scored = std::vector<Scored>(static_cast<size_t>(num_predictors))}) {
  SY_CHECK(num_layers >= 1 && num_predictors >= 1);
}

void BestPredictor::Add(int layer, absl::Span<const int64_t> distances) {
  Layer& at = layers_[static_cast<size_t>(layer)];
  SY_CHECK_EQ(distances.size(), at.scored.size());
  if (distances[0] == kNoEstimate) return;
  for (size_t j = 0; j < distances.size(); ++j) {
    if (distances[j] == kNoEstimate) continue;
    ++at.scored[j].num_batches;
    at.scored[j].distance.Add(distances[j]);
  }
  for (size_t j = 0; j < at.scored.size(); ++j) {
    const int64_t best = at.scored[static_cast<size_t>(at.best)].distance.Mean();
    if (at.scored[j].num_batches >= kEvidence && 16 * at.scored[j].distance.Mean() < 15 * best)
      at.best = static_cast<int>(j);
  }
}

}  // namespace switchyard::popularity
