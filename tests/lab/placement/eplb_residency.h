// The background balancer's problem solved by EPLB: the baseline beside residency.h.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/placement/background/residency.h"

namespace switchyard {

// Every window is placed anew, whatever is there.  matched: devices are renumbered so that the fewest experts move;
// otherwise they are as EPLB numbers them.  The plan has neither facts nor reasons.
// InvalidArgument: all experts do not fit.  REQUIRES: a problem that PlanResidency takes.
absl::StatusOr<placement::ResidencyPlan> PlanEplbResidency(const placement::ResidencyProblem& problem, bool matched);

}  // namespace switchyard
