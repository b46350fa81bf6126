#include "server/balancer/staged_plan.h"

#include "absl/container/flat_hash_set.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

std::vector<LayerResidency> CopyLayers(const LayerStates& layers) {
  std::vector<LayerResidency> copy;
  for (const auto& layer : layers) copy.push_back(*layer);
  return copy;
}

ResidencyProblem ProblemOf(const PlanOrder& order) {
  ResidencyProblem problem;
  problem.phases = order.meter.Profiles(order.census);
  problem.costs = order.meter.PlanCosts(order.horizon_steps);
  problem.present = CopyLayers(order.present);
  problem.limits = order.limits;
  problem.next_epoch = static_cast<uint64_t>(order.next_epoch);
  return problem;
}

absl::StatusOr<StagedPlan> MakePlan(const PlanOrder& order) {
  ASSIGN_OR_RETURN(ResidencyPlan plan, PlanResidency(ProblemOf(order)));
  return StagePlan(std::move(plan), order.present, order.limits);
}

absl::StatusOr<StagedPlan> StagePlan(ResidencyPlan plan, const LayerStates& present, const ResidencyLimits& limits) {
  StagedPlan staged;
  std::vector<LayerResidency> layers = CopyLayers(present);
  LayerStates shared = present;
  for (const ResidencyStage& stage : plan.stages) {
    RETURN_IF_ERROR(ApplyStage(stage, limits, &layers));
    absl::flat_hash_set<int32_t> changed;
    for (const auto* moves : {&stage.arrivals, &stage.departures})
      for (const ResidencyMove& move : *moves) changed.insert(move.layer);
    for (const int32_t layer : changed) {
      const auto l = static_cast<size_t>(layer);
      shared[l] = std::make_shared<const LayerResidency>(layers[l]);
    }
    staged.after.push_back(shared);
  }
  staged.plan = std::move(plan);
  return staged;
}

}  // namespace switchyard
