// Several estimates as one: their weighted mean, each weighted by how right its estimator was lately.
//
// The weight is the inverse fourth power of the running total-variation distance, so that an estimator twice as far off
// counts a sixteenth: errors of estimators are alike, so the good one must rule.  Per layer.  Integers only.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/predictors/estimate_score.h"

namespace switchyard {

class BlendPredictor {
 public:
  BlendPredictor(int num_layers, size_t num_estimators)
      : distance_(static_cast<size_t>(num_layers), std::vector<popularity::RunningMean>(num_estimators)) {}

  // estimates [J] of the layer; null or empty: its estimator has none.  Returns `total` in all; empty if there are
  // none.
  popularity::Popularity Estimate(int layer, absl::Span<const popularity::Popularity* const> estimates,
                                  int64_t total) const;
  // Scores the estimates by what came.
  void Observe(int layer, absl::Span<const popularity::Popularity* const> estimates,
               const popularity::Popularity& actual);

 private:
  int64_t WeightOf(size_t j, int layer) const;

  std::vector<std::vector<popularity::RunningMean>> distance_;  // [L][J]
};

}  // namespace switchyard
