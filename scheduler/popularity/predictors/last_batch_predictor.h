// The last batch again: a layer gets what it got the last time, scaled to the batch's rows.
//
// Good where batches follow each other in one text, useless for batches of few tokens.  Of one phase: a prefill says
// little of the decode step after it.  Thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

class LastBatchPredictor {
 public:
  explicit LastBatchPredictor(RoutingShape shape) : counts_(static_cast<size_t>(shape.num_layers)) {}

  // [E] T * K * kRow in all; empty before the layer's first batch that had a row.
  Popularity Estimate(const RoutingView& batch, int layer) const {
    const Popularity& counts = counts_[static_cast<size_t>(layer)];
    return counts.empty() ? counts : ScaledTo(counts, batch.num_rows() * kRow);
  }
  // The gate of `layer` has run.
  void Observe(const RoutingView& batch, int layer) {
    Popularity counts = CountsOf(batch, layer);
    if (TotalOf(counts) > 0) counts_[static_cast<size_t>(layer)] = std::move(counts);
  }

 private:
  std::vector<Popularity> counts_;  // [L][E]; empty = none yet
};

}  // namespace switchyard::popularity
