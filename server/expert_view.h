// How a model's experts are used and where they are, as GetExperts tells it.  Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/placement.h"
#include "scheduler/popularity/expert_census.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard {

// INVALID_ARGUMENT (BAD_FIELD): a layer outside [0, num_moe_layers) or named twice.
absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers);

// The layers that the request names, in its order; all if it names none.  placement: of every layer.
// REQUIRES: CheckExpertsRequest passed.
v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertCensus& census,
                                       const Placement& placement);

}  // namespace switchyard
