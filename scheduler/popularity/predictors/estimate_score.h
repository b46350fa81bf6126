// How right an estimator was lately, in one layer: metrics show it, and the choice between estimators goes by it.
//
//   accuracy   share of batches whose set of the 2k most popular experts was right (Lina, section 5.2)
//   distance   mean total-variation distance of the popularity: the one to steer by, as accuracy says more about the
//              skew than about the estimator
// Running means, 1/16 renewed by each batch.  Integers only, so that ranks that score the same numbers agree.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

// A distance or share of 1.
inline constexpr int64_t kWholeDistance = int64_t{1} << 20;

// Total-variation distance of the two shares in 2^-20, rounded down: half the sum of |share - share|.  0 if both are
// empty, kWholeDistance if one is.  The same on every machine.
int64_t DistanceOf(absl::Span<const int64_t> a, absl::Span<const int64_t> b);

// Mean of the samples, the newest weighing 1/16 of a long run; of a short one all weigh about the same.
class RunningMean {
 public:
  // REQUIRES: 0 <= sample <= kWholeDistance.
  void Add(int64_t sample);
  // In 2^-20; kWholeDistance / 2 before the first sample.
  int64_t Mean() const;

 private:
  int64_t sum_ = 0, weight_ = 0;
};

class EstimateScore {
 public:
  // One batch.  REQUIRES: [E] each.
  void Add(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual, int top_k);

  int64_t num_batches() const { return num_batches_; }
  // In [0, 1].
  double accuracy() const { return static_cast<double>(accuracy_.Mean()) / kWholeDistance; }
  double distance() const { return static_cast<double>(distance_.Mean()) / kWholeDistance; }

 private:
  int64_t num_batches_ = 0;
  RunningMean accuracy_, distance_;
};

}  // namespace switchyard::popularity
