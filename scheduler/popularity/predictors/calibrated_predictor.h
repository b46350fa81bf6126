// An estimate by what predictions turned out to mean: the sum over tokens of P(expert | the experts predicted of it, in
// order).
//
// A probe names a token's likeliest experts; counting the first top_k of them as certain leaves out what it does not
// know.  A profile of predictions (ContextKind::kPredicted, of the same channel) has counted what such tokens chose: of
// the first four predicted, backing off to three, two, one.  A token whose first prediction was never seen counts as
// predicted.  README.md has the figures.
// Borrows the predictions and the profile and only reads them.  Thread-compatible.
#pragma once

#include <cstdint>

#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/predictors/observed_predictor.h"

namespace switchyard::popularity {

class CalibratedPredictor {
 public:
  // REQUIRES: a profile of predictions of that channel; both outlive this; min_tokens >= 1.
  CalibratedPredictor(const ObservedPredictor* said, const PathProfile* profile, int min_tokens = 2);

  // [E] T * K * kRow in all; empty where there are no predictions of tokens.
  Popularity Estimate(const RoutingView& batch, int layer) const;
  // [E] of token t, of whole 2^20; false if its predictions are all -1.  REQUIRES: there are predictions.
  bool SharesOf(const RoutingView& batch, int64_t t, int layer, absl::Span<int64_t> share) const;

 private:
  const ObservedPredictor* said_;
  const PathProfile* profile_;
  int min_tokens_;
};

}  // namespace switchyard::popularity
