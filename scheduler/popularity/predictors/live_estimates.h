// All estimators of one phase on live traffic: counts it, asks and scores them, and answers with the best one.
//
// One object a phase (prefill, decode) and rank.  Layer by layer, what a worker's op predicted is handed in, Estimate
// answers for a coming layer, and Observe receives what its gate chose.  Profiles of paths, token ids and predictions
// are counted along the way; each layer and distance (one or two layers ahead) has a score for each estimator, and the
// best one.
// Only every full_every-th pass asks and scores all estimators; the others ask the best one alone.  Of long
// passes a window of rows is counted, another one each time.
// Integers only; deterministic.  Thread-compatible.  Does not know hidden states (workers/moe), other ranks, files.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/predictors/best_predictor.h"
#include "scheduler/popularity/predictors/calibrated_predictor.h"
#include "scheduler/popularity/predictors/estimate_score.h"
#include "scheduler/popularity/predictors/live_predictor.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"

namespace switchyard::popularity {

// Means over the layers in which an estimator was scored.
struct EstimateMeans {
  int num_layers = 0;
  double accuracy = 0;
  double distance = 0;
};

class LiveEstimates {
 public:
  // REQUIRES: profiles of this shape are possible (CheckProfile); num_predicted in [1, E].
  explicit LiveEstimates(LiveOptions options);
  LiveEstimates(LiveEstimates&&) = default;  // no copies: estimators point into what a move keeps in place

  // A pass with rows of this phase begins.
  void BeginPass();
  // Whether this pass uses a prediction of `layer` that is made `ahead` layers before it.
  bool Wants(Predictor predictor, int layer, int ahead) const;
  // predictions [T, M] of the pass's rows, best first, -1 = none.
  void SetPredictions(Predictor predictor, int layer, int ahead, absl::Span<const int16_t> predictions);
  // Adds T * K * kRow to popularity [E] by the best estimator; false, and nothing added, if none has an estimate.
  // Layers up to layer - ahead of the batch are known.  REQUIRES: ahead in [1, kMaxAhead]; once a pass, layer and
  // ahead.
  bool Estimate(const RoutingView& batch, int layer, int ahead, absl::Span<int64_t> popularity);
  // The gate of `layer` has run.  REQUIRES: the rows that Estimate saw.
  void Observe(const RoutingView& batch, int layer);

  const RoutingShape& shape() const { return options_.shape; }
  // The estimator that decides: the one that was most right so far, or as the options say.
  LivePredictor Best(int layer, int ahead) const;
  // Over the passes that asked all estimators.
  const EstimateScore& score(LivePredictor estimator, int layer, int ahead) const;
  EstimateMeans MeansOf(LivePredictor estimator, int ahead) const;

  // In the order of LiveProfiles; replaced by Restore.
  const std::vector<PathProfile>& profiles() const { return profiles_; }
  // The same without what was restored, where the options keep it apart; else profiles().
  const std::vector<PathProfile>& own_profiles() const { return own_.empty() ? profiles_ : own_; }
  // Adds what was counted elsewhere.  CheckSameProfile's error if none of these profiles is of its identity.
  absl::Status Restore(const PathProfile& counted);
  // Adds a part of what was restored to own_profiles(), where they are kept apart.  Restore's errors.
  absl::Status RestoreOwn(const PathProfile& counted);

 private:
  using KeptEstimates = std::array<Popularity, kNumLivePredictors>;  // empty = not asked, or none
  // One distance: the predictors' statements, and what was estimated, until the layer's gate has run.
  struct Distance {
    std::vector<ObservedPredictor> said;                                // [Predictor]
    std::vector<CalibratedPredictor> calibrated;                        // [Predictor] of what is said
    std::vector<KeptEstimates> kept;                                    // [L]
    std::vector<std::array<EstimateScore, kNumLivePredictors>> scores;  // [L]
    BestPredictor best;
  };

  Distance MakeDistance(int ahead) const;
  // Whether this pass asks the estimator.
  bool Asks(LivePredictor estimator, int layer, int ahead) const;
  // Forgets what was said and estimated of the layer's next run.
  void Forget(int layer, int ahead);
  // One estimator's answer; empty if it has none.
  Popularity Ask(LivePredictor estimator, const RoutingView& batch, int layer, int ahead) const;
  void Finalize(int layer, int ahead, const Popularity& actual);
  void Count(const RoutingView& batch, int layer);
  Distance& at(int ahead) { return distances_[static_cast<size_t>(ahead - 1)]; }
  const Distance& at(int ahead) const { return distances_[static_cast<size_t>(ahead - 1)]; }

  LiveOptions options_;
  std::vector<PathProfile> profiles_;  // never grows: estimators point into it
  std::vector<PathProfile> own_;       // empty = nothing was restored, or it is not kept apart
  ProfilePredictor marginal_, path_, token_;
  std::vector<Distance> distances_;  // [ahead - 1]
  int64_t num_passes_ = 0;
  bool full_ = true;
};

}  // namespace switchyard::popularity
