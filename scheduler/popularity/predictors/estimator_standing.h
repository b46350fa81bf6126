// How estimators stand in each layer: right how often, how far off, in use or switched off; of one rank, and of a
// group.
//
// What `switchyard experts --estimators` shows.  Plain data and pure functions.  Does not do: scoring
// (estimate_score.h), choosing (estimator_monitor.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/popularity/predictors/live_estimates.h"

namespace switchyard {

// Of one estimator, layer, phase and distance on one rank.
struct EstimatorStanding {
  int32_t layer = 0;
  Phase phase = Phase::kPrefill;
  int32_t ahead = 1;  // layers, in [1, kMaxAhead]
  LiveEstimator estimator = LiveEstimator::kMarginal;
  int64_t batches = 0;  // that were scored
  double accuracy = 0;  // share of batches whose set of the 2k most popular experts was right
  double distance = 0;  // mean total-variation distance
  EstimatorState state = EstimatorState::kOn;
  bool used = false;             // the rank's estimates are this one's
  double off_distance = 0;       // when it was switched off last; 0: never
  double marginal_distance = 0;  // the yardstick's then
  bool operator==(const EstimatorStanding& other) const = default;
};

// Of the estimators that were scored, by layer, distance and estimator.
std::vector<EstimatorStanding> StandingsOf(const LiveEstimates& estimates, Phase phase);

// Of another process: InvalidArgument names what cannot be in a model of so many MoE layers.
absl::Status CheckStandings(absl::Span<const EstimatorStanding> standings, int num_layers);

// Of a group: each rank scores its own rows and chooses for them.
struct GroupStanding {
  EstimatorStanding mean;  // of the ranks, weighted by batches, which are summed; `used`, `state`: of no meaning here
  int ranks_using = 0;
  int ranks_off = 0;  // off, or scored in the shadow (on trial)
};
// Of one layer, by phase, distance and estimator.  Of the off figures the last rank's that has it off.
std::vector<GroupStanding> GroupStandings(absl::Span<const std::vector<EstimatorStanding>* const> ranks, int layer);

}  // namespace switchyard
