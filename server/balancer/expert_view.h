// The answer of GetExperts: experts' load and placement.  Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/balancer/background_balancer.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {

// INVALID_ARGUMENT (BAD_FIELD): a layer outside [0, num_moe_layers) or named twice; an expert outside [0, num_experts).
absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers, int num_experts);

// Describes the layers that the request names, in its order; all if it names none.  REQUIRES: CheckExpertsRequest
// passed; placement and reports have the load statistics' layers and experts.
v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertsCopy& experts,
                                       absl::Time now);

// Explains in sentences where an expert is: its counts, the plan that put or left it there, and the spare slots that
// held it last.
std::string WhyThere(const ExpertsCopy& experts, int layer, int expert, absl::Time now);

}  // namespace switchyard::server
