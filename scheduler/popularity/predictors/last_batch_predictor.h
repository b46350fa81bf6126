// The last batch again: a layer gets what it got the last time, scaled to the batch's rows.
//
// What every balancer without prediction does.  Good where batches follow each other in one text, useless for batches
// of few tokens.  Its own counts of one phase: a prefill says little of the decode step after it.
#pragma once

#include <vector>

#include "scheduler/popularity/predictors/load_predictor.h"

namespace switchyard::popularity {

class LastBatchPredictor : public LoadPredictor {
 public:
  explicit LastBatchPredictor(RoutingShape shape);

  absl::string_view name() const override { return "last_batch"; }
  // False before the layer's first batch that had a row.
  bool Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const override;
  void Observe(const RoutingView& batch, int layer) override;

 private:
  std::vector<Popularity> counts_;  // [L][E]; empty = none yet
};

}  // namespace switchyard::popularity
