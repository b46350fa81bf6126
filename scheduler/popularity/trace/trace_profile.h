// Counts a recorded trace into a profile bundle as the live estimators count: paths and token ids of prefilled and of
// decoded tokens, and what the channels' predictions meant.  Makes no probe maps, which need hidden states.  Pure.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/popularity/predictors/live_predictor.h"
#include "scheduler/popularity/profile_bundle.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::popularity {

// Profiles of a phase without a token are left out.  InvalidArgument: a shape or path_length (l) that no profile can
// have, with the field.
absl::StatusOr<ProfileBundle> CountTrace(const RoutingTrace& trace, int path_length = kLivePathLength);

}  // namespace switchyard::popularity
