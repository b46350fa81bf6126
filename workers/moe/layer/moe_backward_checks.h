// What a MoE layer's backward checks of its arguments before it runs.  Internal to workers/moe.
#pragma once

#include "absl/status/status.h"
#include "workers/moe/layer/moe_backward.h"

namespace switchyard::moe {

// Errors: InvalidArgument with what is given and what is wanted (shapes, dtypes, a missing transpose);
// FailedPrecondition (nothing was saved, or of another schedule or other rows); Unimplemented (a device).
absl::Status CheckBackward(const MoeContext& context, const MoeLayer& layer, const MoeSaved* saved,
                           const MoeBackwardWeights& weights, const MoeBackwardRows& rows);

}  // namespace switchyard::moe
