// The predictions of estimators for each token alone, best first: for the share of a token's own experts that is found.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/predictors/calibrated_predictor.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"

namespace switchyard {

// All return [T, num_predicted], distinct experts; -1 from where there are no more.

// A token's most probable experts; none beyond those that its row has counts of.  REQUIRES: it has an estimate.
std::vector<int16_t> PredictTokens(const popularity::ProfilePredictor& predictor,
                                   const popularity::PathProfile& profile, const popularity::RoutingView& batch,
                                   int layer, int num_predicted);
// As they were predicted.  REQUIRES: there are predictions.
std::vector<int16_t> PredictTokens(const popularity::ObservedPredictor& said, const popularity::RoutingView& batch,
                                   int layer, int num_predicted);
// The most probable experts; after those that the profile knows, what was predicted besides.
std::vector<int16_t> PredictTokens(const popularity::CalibratedPredictor& predictor,
                                   const popularity::ObservedPredictor& said, const popularity::RoutingView& batch,
                                   int layer, int num_predicted);

}  // namespace switchyard
