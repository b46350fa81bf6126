#include "tests/lab/placement/eplb_residency.h"

#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "scheduler/placement/background/matching.h"
#include "tests/lab/placement/eplb.h"

namespace switchyard {

absl::StatusOr<placement::ResidencyPlan> PlanEplbResidency(const placement::ResidencyProblem& problem, bool matched) {
  placement::ResidencyPlan plan;
  const int layers = static_cast<int>(problem.present.size());
  for (int layer = 0; layer < layers; ++layer) {
    const placement::Placement& present = problem.present[layer];
    popularity::Popularity load(present.num_experts, 0);
    for (const placement::PhaseProfile& phase : problem.phases) {
      for (int expert = 0; expert < present.num_experts; ++expert) load[expert] += phase.rows[layer][expert];
    }
    ASSIGN_OR_RETURN(placement::Placement placement,
                     EplbPlacement(load, {.num_replicas = problem.layer_slots * present.num_devices(),
                                          .num_devices = present.num_devices()}));
    placement = WithoutDuplicates(std::move(placement));
    for (auto& device : placement.slots) device.resize(problem.layer_slots + 1, placement::kEmptySlot);
    placement =
        matched ? placement::MatchDevices(present, placement) : placement::KeepSlots(present, std::move(placement));
    plan.layers.push_back(std::move(placement));
  }
  placement::AddMigrations(problem, &plan);
  return plan;
}

}  // namespace switchyard
