// Which estimator decides in which layer, and which are not worth asking, by their distances on live traffic.
//
// An estimator that is clearly worse than marginal (index 0, which costs nothing) is switched off and reported; after a
// while it is tried in the shadow, scored but never chosen, and comes back if it is better than marginal by then.  Each
// time it fails the wait doubles.
//
//            evidence and > 9/8 of marginal's            wait over
//      on ------------------------------------> off ----------------> trial
//       ^                                         ^ not below 15/16      |
//       |                                         +----------------------+
//       +------------------------ below 15/16 of marginal's -------------+
//
// Both distances of a comparison are of the same batches.  Integers only, so that ranks choose alike.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/predictors/estimate_score.h"

namespace switchyard::popularity {

struct MonitorOptions {
  int64_t min_batches = 16;    // scored batches before an estimator is chosen or switched off
  int64_t trial_batches = 32;  // of a trial
  int64_t wait_batches = 256;  // before the first trial; doubles with every failed one
  int64_t max_wait_batches = 4096;
};

enum class PredictorState { kOn, kOff, kTrial };

// Mean distances, in 2^-20, by which an estimator was switched off last; zeros if it never was.
struct OffVerdict {
  int64_t own = 0, yardstick = 0;
};

class PredictorMonitor {
 public:
  static constexpr int64_t kNoEstimate = -1;

  // names [J]; the first is the yardstick and always on.  REQUIRES: J >= 1; every option >= 1.
  PredictorMonitor(std::vector<std::string> names, int num_layers, MonitorOptions options);

  // Whether the estimator is to be asked for the layer's next batch (on, or on trial).
  bool Wants(int layer, int estimator) const;
  // One batch: distances [J] in 2^-20 (DistanceOf), kNoEstimate of those that were not asked or had none.  Without the
  // yardstick's the batch says nothing.
  void Add(int layer, absl::Span<const int64_t> distances);
  // The estimator to decide by: the least distant of those that are on and have evidence; another than before only if
  // it is better by 1/16.  0 as long as there is no evidence.
  int Best(int layer) const { return layers_[static_cast<size_t>(layer)].best; }
  PredictorState StateOf(int layer, int estimator) const;
  OffVerdict LastOff(int layer, int estimator) const;
  // Says which were switched off or on since the last call, one sentence each, with both figures.
  std::vector<std::string> TakeReports();

 private:
  struct Watched {
    PredictorState state = PredictorState::kOn;
    RunningMean own, yardstick;  // over batches that the estimator had an estimate for
    int64_t num_batches = 0;     // of these; in kOff: waited
    int64_t wait_batches = 0;
    OffVerdict verdict;
  };
  struct Layer {
    std::vector<Watched> estimators;  // [J]
    int best = 0;
  };

  void MoveTo(PredictorState next, Watched* watched);
  void Judge(int layer, size_t j, Watched* watched);
  void Choose(Layer* layer);

  std::vector<std::string> names_;
  MonitorOptions options_;
  std::vector<Layer> layers_;  // [L]
  std::vector<std::string> reports_;
};

}  // namespace switchyard::popularity
