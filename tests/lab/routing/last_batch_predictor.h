// The last batch again: a layer gets what it got the last time, scaled to the batch's rows.
//
// Good where batches follow each other in one text, useless for batches of few tokens.  Of one phase: a prefill says
// little of the decode step after it.  Thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard {

class LastBatchPredictor {
 public:
  explicit LastBatchPredictor(popularity::RoutingShape shape) : counts_(static_cast<size_t>(shape.num_layers)) {}

  // [E] T * K * popularity::kRow in all; empty before the layer's first batch that had a row.
  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const {
    const popularity::Popularity& counts = counts_[static_cast<size_t>(layer)];
    return counts.empty() ? counts : popularity::ScaledTo(counts, batch.num_rows() * popularity::kRow);
  }
  // The gate of `layer` has run.
  void Observe(const popularity::RoutingView& batch, int layer) {
    popularity::Popularity counts = popularity::CountsOf(batch, layer);
    if (popularity::TotalOf(counts) > 0) counts_[static_cast<size_t>(layer)] = std::move(counts);
  }

 private:
  std::vector<popularity::Popularity> counts_;  // [L][E]; empty = none yet
};

}  // namespace switchyard
