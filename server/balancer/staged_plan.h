// A plan of the slow loop with all that carrying it out wants to know: worked out where the plan is made, so that the
// engine's thread copies no tables and checks nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/residency.h"
#include "scheduler/popularity/expert_census.h"
#include "server/balancer/placement_meter.h"

namespace switchyard {

// [L] where the experts of a layer are; layers that nothing changes are shared between states.
using LayerStates = std::vector<std::shared_ptr<const LayerResidency>>;

std::vector<LayerResidency> CopyLayers(const LayerStates& layers);

struct StagedPlan {
  ResidencyPlan plan;
  std::vector<LayerStates> after;  // [stages] where experts are then
};

// What a plan is to be made of: copies of counts and shared tables, so that the problem itself is put together where
// the plan is made.
struct PlanOrder {
  ExpertCensus census;
  PlacementMeter meter;
  LayerStates present;  // [L]
  ResidencyLimits limits;
  int64_t horizon_steps = 0;
  int64_t next_epoch = 1;
};

ResidencyProblem ProblemOf(const PlanOrder& order);
// Takes as long as PlanResidency.  Its errors, and StagePlan's.
absl::StatusOr<StagedPlan> MakePlan(const PlanOrder& order);

// InvalidArgument: a stage that cannot be applied after those before it (ApplyStage).
absl::StatusOr<StagedPlan> StagePlan(ResidencyPlan plan, const LayerStates& present, const ResidencyLimits& limits);

}  // namespace switchyard
