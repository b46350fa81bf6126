// A recorded trace counted into a profile bundle: paths and token ids of prefilled and of decoded tokens, and what
// predictions meant of the trace's channels; as the live estimators count them, so that they take it.
//
// Pure.  Does not do: probe maps, which want hidden states (workers/moe/popularity/probe_fit.h).
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
