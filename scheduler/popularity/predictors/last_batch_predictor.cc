#include "scheduler/popularity/predictors/last_batch_predictor.h"

#include <utility>

namespace switchyard::popularity {

Popularity LastBatchPredictor::Estimate(const RoutingView& batch, int layer) const {
  const Popularity& counts = counts_[static_cast<size_t>(layer)];
  return counts.empty() ? counts : ScaledTo(counts, batch.num_rows() * kRow);
}

void LastBatchPredictor::Observe(const RoutingView& batch, int layer) {
  Popularity counts = CountsOf(batch, layer);
  if (TotalOf(counts) > 0) counts_[static_cast<size_t>(layer)] = std::move(counts);
}

}  // namespace switchyard::popularity
