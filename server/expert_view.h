// How a model's experts are used and where they are, as GetExperts tells it.  Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/popularity/expert_census.h"
#include "server/residency_loop.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard {

// INVALID_ARGUMENT (BAD_FIELD): a layer outside [0, num_moe_layers) or named twice; an expert outside [0, num_experts).
absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers, int num_experts);

// The layers that the request names, in its order; all if it names none.
// REQUIRES: CheckExpertsRequest passed; placement has the census' layers and experts.
v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertCensus& census,
                                       const ResidencyView& placement, absl::Time now);

// Where one expert is, what was counted of it, and which plan put it there or left it.
std::string WhyThere(const ExpertCensus& census, const ResidencyView& placement, int layer, int expert);

}  // namespace switchyard
