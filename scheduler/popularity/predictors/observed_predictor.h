// What a worker's op said of this batch's hidden states: gate_ahead (the next gate on this layer's state), probe and
// probe2 (ridge regression one and two layers ahead; workers/ops has them).
//
// The scheduler sees no hidden state: the op yields expert ids per token or counts per expert, and they are handed in
// here before Estimate; when a trace is replayed, its channel of that name is.  A statement is good for one batch:
// Observe takes it away, so that a stale one is never used.
// Of ids the first top_k of each token count one row each.  Summing soft probabilities instead was worse at every size
// (scheduler/PAPERS.md, "Probe").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/popularity/predictors/load_predictor.h"

namespace switchyard::popularity {

class ObservedPredictor : public TokenPredictor {
 public:
  // name: "gate_ahead", "probe", "probe2".
  ObservedPredictor(std::string name, RoutingShape shape);

  // predictions [T, M], best first, -1 = none; for the next batch in this layer.  Copies.
  // REQUIRES: M >= 1; ids < E.
  void SetPredictions(int layer, int num_predicted, absl::Span<const int16_t> predictions);
  // counts [E], rows; such a statement has an Estimate but no Predict.
  void SetCounts(int layer, absl::Span<const int64_t> counts);

  // What was handed in of the layer: [T, M], and M; empty and 0 if nothing was, or counts.
  absl::Span<const int16_t> predictions(int layer) const { return statements_[static_cast<size_t>(layer)].predictions; }
  int num_predicted(int layer) const { return statements_[static_cast<size_t>(layer)].num_predicted; }

  absl::string_view name() const override { return name_; }
  // False where nothing was said of this batch, or no token has a prediction.
  bool Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const override;
  void Observe(const RoutingView& batch, int layer) override;
  bool Predict(const RoutingView& batch, int layer, int num_predicted, absl::Span<int16_t> predicted) const override;

 private:
  struct Statement {
    int num_predicted = 0;
    std::vector<int16_t> predictions;  // [T, M]
    Popularity counts;                 // [E]; empty = nothing was said
  };

  std::string name_;
  RoutingShape shape_;
  std::vector<Statement> statements_;  // [L]
};

}  // namespace switchyard::popularity
