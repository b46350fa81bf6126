#include "scheduler/popularity/predictors/last_batch_predictor.h"

#include <utility>

namespace switchyard::popularity {

LastBatchPredictor::LastBatchPredictor(RoutingShape shape) : counts_(static_cast<size_t>(shape.num_layers)) {}

bool LastBatchPredictor::Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const {
  const Popularity& counts = counts_[static_cast<size_t>(layer)];
  if (counts.empty()) return false;
  const Popularity scaled = ScaledTo(counts, batch.num_tokens * batch.shape.top_k * kRow);
  for (size_t e = 0; e < scaled.size(); ++e) popularity[e] += scaled[e];
  return true;
}

void LastBatchPredictor::Observe(const RoutingView& batch, int layer) {
  Popularity counts = CountsOf(batch, layer);
  if (TotalOf(counts) > 0) counts_[static_cast<size_t>(layer)] = std::move(counts);
}

}  // namespace switchyard::popularity
