// Where experts should be: a layer of eight experts on four devices, one expert with half of the rows → a plan → why.
#include <iostream>

#include "scheduler/base/check.h"
#include "scheduler/placement/background/residency.h"

using namespace switchyard;

int main() {
  // Each device has two experts and room for one replica.
  placement::ResidencyProblem problem;
  problem.layer_slots = 3;
  problem.present = {placement::ContiguousPlacement(/*num_experts=*/8, /*num_devices=*/4, /*spare_slots=*/2)};
  // What was counted in the last 100 steps: expert 0 had 7000 rows, each of the others 1000.
  popularity::Popularity rows(8, 1000 * popularity::kRow);
  rows[0] = 7000 * popularity::kRow;
  problem.phases = {{.steps = 100, .rows = {rows}}};
  problem.costs = {.row_seconds = 1e-5, .move_seconds = 1e-3, .expert_bytes = 1 << 20, .horizon_steps = 300};

  const auto plan = placement::PlanResidency(problem);
  SY_CHECK_OK(plan.status());
  std::cout << "before " << problem.present[0].ToString() << "\nafter  " << plan->layers[0].ToString() << "\n"
            << placement::Explain(*plan, /*layer=*/0, /*expert=*/0) << "\n";

  // The busiest device had 8000 of 14000 rows, 2.3 times the mean.
  SY_CHECK_GT(plan->layer_facts[0].before, 2.2);
  SY_CHECK_LT(plan->layer_facts[0].after, 1.1);
  SY_CHECK_GT(plan->layers[0].DevicesOf(0).size(), 1u);
  // Migration by migration, as workers carry it out, no device ever has more than its slots and one.
  for (const placement::ResidencyMigration& migration : plan->migrations) {
    SY_CHECK_OK(placement::ApplyMigration(migration, problem.layer_slots, &problem.present));
  }
  SY_CHECK(problem.present == plan->layers);
}
