// The estimate of a worker's op from this batch's hidden states: gate_ahead (the later gate on this layer's state) or
// probe (a fitted map).
//
// The scheduler sees no hidden state: the op yields expert ids per token, which are handed in here before Estimate.  A
// statement is good for one batch: Clear takes it away, so that a stale one is never used.  The first top_k of each
// token count one row each.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

class ObservedPredictor {
 public:
  explicit ObservedPredictor(RoutingShape shape) : shape_(shape), statements_(static_cast<size_t>(shape.num_layers)) {}

  // predictions [T, M], best first, -1 = none; for the next batch in this layer.  Copies.
  // REQUIRES: M >= 1; ids < E.
  void SetPredictions(int layer, int num_predicted, absl::Span<const int16_t> predictions);
  void Clear(int layer) { statements_[static_cast<size_t>(layer)] = {}; }

  // The predictions that were handed in for the layer: [T, M], and M; empty and 0 if nothing was.
  absl::Span<const int16_t> predictions(int layer) const { return statements_[static_cast<size_t>(layer)].predictions; }
  int num_predicted(int layer) const { return statements_[static_cast<size_t>(layer)].num_predicted; }

  // [E] T * K * kRow in all; empty where nothing was handed in, or no token has a prediction.
  Popularity Estimate(const RoutingView& batch, int layer) const;

 private:
  struct Statement {
    int num_predicted = 0;
    std::vector<int16_t> predictions;  // [T, M]
    Popularity counts;                 // [E]
  };

  RoutingShape shape_;
  std::vector<Statement> statements_;  // [L]
};

}  // namespace switchyard::popularity
