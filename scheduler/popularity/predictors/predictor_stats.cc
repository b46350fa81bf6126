#include "scheduler/popularity/predictors/predictor_stats.h"

#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "scheduler/popularity/predictors/estimate_score.h"

namespace switchyard::popularity {
namespace {

bool IsShare(double value) { return value >= 0 && value <= 1; }  // false for NaN

size_t IndexOf(const PredictorStats& entry) {
  const size_t at = static_cast<size_t>(entry.phase) * kMaxAhead + static_cast<size_t>(entry.ahead - 1);
  return at * kNumLivePredictors + static_cast<size_t>(entry.estimator);
}

void Add(const PredictorStats& rank, GroupStats* group) {
  PredictorStats& mean = group->mean;
  const int64_t batches = mean.batches + rank.batches;
  const double weight = static_cast<double>(rank.batches) / static_cast<double>(batches);
  mean.accuracy += weight * (rank.accuracy - mean.accuracy);
  mean.distance += weight * (rank.distance - mean.distance);
  mean.batches = batches;
  if (rank.used) ++group->ranks_using;
}

}  // namespace

std::vector<PredictorStats> PredictorStatsOf(const LiveEstimates& estimates, Phase phase) {
  std::vector<PredictorStats> stats;
  for (int layer = 0; layer < estimates.shape().num_layers; ++layer) {
    for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
      const LivePredictor best = estimates.Best(layer, ahead);
      for (int j = 0; j < kNumLivePredictors; ++j) {
        const auto estimator = static_cast<LivePredictor>(j);
        const EstimateScore& score = estimates.score(estimator, layer, ahead);
        if (score.num_batches() == 0) continue;
        stats.push_back({.layer = layer,
                         .phase = phase,
                         .ahead = ahead,
                         .estimator = estimator,
                         .batches = score.num_batches(),
                         .accuracy = score.accuracy(),
                         .distance = score.distance(),
                         .used = estimator == best});
      }
    }
  }
  return stats;
}

absl::Status CheckPredictorStats(absl::Span<const PredictorStats> stats, int num_layers) {
  for (const PredictorStats& at : stats) {
    const bool placed = at.layer >= 0 && at.layer < num_layers && at.ahead >= 1 && at.ahead <= kMaxAhead &&
                        static_cast<int>(at.phase) < 2 && static_cast<int>(at.estimator) < kNumLivePredictors;
    const bool counted = at.batches >= 1 && at.batches < int64_t{1} << 40;
    if (placed && counted && IsShare(at.accuracy) && IsShare(at.distance)) continue;
    return absl::InvalidArgumentError(absl::StrCat("estimator ", static_cast<int>(at.estimator), " of phase ",
                                                   static_cast<int>(at.phase), ", layer ", at.layer, " of ", num_layers,
                                                   ", ", at.ahead, " ahead: accuracy ", at.accuracy, " and distance ",
                                                   at.distance, " over ", at.batches, " batches"));
  }
  return absl::OkStatus();
}

std::vector<GroupStats> GroupStatsOf(absl::Span<const std::vector<PredictorStats>* const> ranks, int layer) {
  std::array<std::optional<GroupStats>, 2 * kMaxAhead * kNumLivePredictors> places;
  for (const std::vector<PredictorStats>* rank : ranks) {
    for (const PredictorStats& entry : *rank) {
      if (entry.layer != layer) continue;
      std::optional<GroupStats>& place = places[IndexOf(entry)];
      if (!place.has_value()) {
        place.emplace();
        place->mean.layer = layer;
        place->mean.phase = entry.phase;
        place->mean.ahead = entry.ahead;
        place->mean.estimator = entry.estimator;
      }
      Add(entry, &*place);
    }
  }
  std::vector<GroupStats> group;
  for (const std::optional<GroupStats>& place : places)
    if (place.has_value()) group.push_back(*place);
  return group;
}

}  // namespace switchyard::popularity
