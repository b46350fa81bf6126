// Statistics of the estimators in each layer, of one rank and of a group, as `switchyard experts --estimators` shows
// them.  Plain data and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/popularity/predictors/live_estimates.h"

namespace switchyard::popularity {

// The statistics of one estimator, layer, phase and distance on one rank.
struct PredictorStats {
  int32_t layer = 0;
  Phase phase = Phase::kPrefill;
  int32_t ahead = 1;  // layers, in [1, kMaxAhead]
  LivePredictor estimator = LivePredictor::kMarginal;
  int64_t batches = 0;  // that were scored
  double accuracy = 0;  // share of batches whose set of the 2k most popular experts was right
  double distance = 0;  // mean total-variation distance
  bool used = false;    // the rank's estimates are this one's
  bool operator==(const PredictorStats& other) const = default;
};

// Returns those of the estimators that were scored, by layer, distance and estimator.
std::vector<PredictorStats> PredictorStatsOf(const LiveEstimates& estimates, Phase phase);

// Checks what another process sent: InvalidArgument names what cannot be in a model of so many MoE layers.
absl::Status CheckPredictorStats(absl::Span<const PredictorStats> stats, int num_layers);

// The statistics of a group, where each rank scores its own rows and chooses for them.
struct GroupStats {
  PredictorStats mean;  // of the ranks, weighted by batches, which are summed; `used`: of no meaning here
  int ranks_using = 0;
};
// Returns one layer's, by phase, distance and estimator.
std::vector<GroupStats> GroupStatsOf(absl::Span<const std::vector<PredictorStats>* const> ranks, int layer);

}  // namespace switchyard::popularity
