// Which estimator decides in each layer: the one whose estimates were the nearest on live traffic.
//
// Index 0 is marginal, which costs nothing and decides until another has evidence.  The estimator that decides changes
// only to one that is better by a sixteenth, so that near equals do not take turns.  Integers only, so that ranks
// choose alike.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/predictors/estimate_score.h"

namespace switchyard::popularity {

class BestPredictor {
 public:
  static constexpr int64_t kNoEstimate = -1;
  static constexpr int64_t kEvidence = 16;  // scored batches before an estimator may decide

  // REQUIRES: both >= 1.
  BestPredictor(int num_layers, int num_predictors);

  // One batch: distances [J] in 2^-20 (DistanceOf), kNoEstimate of those that were not asked or had none.  Without
  // marginal's the batch says nothing.
  void Add(int layer, absl::Span<const int64_t> distances);
  int Of(int layer) const { return layers_[static_cast<size_t>(layer)].best; }

 private:
  struct Scored {
    RunningMean distance;  // over batches that the estimator had an estimate for
    int64_t num_batches = 0;
  };
  struct Layer {
    std::vector<Scored> scored;  // [J]
    int best = 0;
  };

  std::vector<Layer> layers_;  // [L]
};

}  // namespace switchyard::popularity
