// How estimators stand in each layer, of one rank and of a group: what `switchyard experts --estimators` shows.  Plain
// data and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/popularity/predictors/live_estimates.h"

namespace switchyard::popularity {

// Of one estimator, layer, phase and distance on one rank.
struct PredictorStats {
  int32_t layer = 0;
  Phase phase = Phase::kPrefill;
  int32_t ahead = 1;  // layers, in [1, kMaxAhead]
  LivePredictor estimator = LivePredictor::kMarginal;
  int64_t batches = 0;  // that were scored
  double accuracy = 0;  // share of batches whose set of the 2k most popular experts was right
  double distance = 0;  // mean total-variation distance
  PredictorState state = PredictorState::kOn;
  bool used = false;             // the rank's estimates are this one's
  double off_distance = 0;       // when it was switched off last; 0: never
  double marginal_distance = 0;  // the yardstick's then
  bool operator==(const PredictorStats& other) const = default;
};

// Of the estimators that were scored, by layer, distance and estimator.
std::vector<PredictorStats> StandingsOf(const LiveEstimates& estimates, Phase phase);

// Of another process: InvalidArgument names what cannot be in a model of so many MoE layers.
absl::Status CheckStandings(absl::Span<const PredictorStats> standings, int num_layers);

// Of a group: each rank scores its own rows and chooses for them.
struct GroupStats {
  PredictorStats mean;  // of the ranks, weighted by batches, which are summed; `used`, `state`: of no meaning here
  int ranks_using = 0;
  int ranks_off = 0;  // off, or scored in the shadow (on trial)
};
// Of one layer, by phase, distance and estimator.  Of the off figures the last rank's that has it off.
std::vector<GroupStats> GroupStandings(absl::Span<const std::vector<PredictorStats>* const> ranks, int layer);

}  // namespace switchyard::popularity
