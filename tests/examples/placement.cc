// Where a layer's rows go: eight experts on four devices, one with half of the rows → a decision → what is copied, who
// computes what.
#include <iostream>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/placement/per_step/layer_decision.h"

using namespace switchyard;

int main() {
  // Each device has two experts and a slot to spare.
  placement::PolicyShape shape;
  shape.mode = placement::PlacementMode::kAgreed;
  shape.residents = {placement::ContiguousPlacement(/*num_experts=*/8, /*num_devices=*/4, /*spare_slots=*/1)};
  // A copy takes as long as 20 rows.
  shape.costs = {.copy_ps = 200'000, .row_ps = 10'000};
  const auto policy = placement::MakePlacementPolicy(shape);
  SY_CHECK_OK(policy.status());
  std::cout << "before " << (*policy)->table(0).placement().ToString() << "\n";

  // What the gates of the four ranks chose: expert 0 700 rows, each of the others 100.
  const std::vector<int32_t> rows = {175, 25, 25, 25, 25, 25, 25, 25, 175, 25, 25, 25, 25, 25, 25, 25,
                                     175, 25, 25, 25, 25, 25, 25, 25, 175, 25, 25, 25, 25, 25, 25, 25};
  const placement::LayerDecision decision =
      (*policy)->Decide({.counts = {.num_ranks = 4, .num_experts = 8, .rows = rows}, .estimates = {}});
  std::cout << "after  " << (*policy)->table(0).placement().ToString() << ", "
            << placement::NumCopies(decision.demand.changes) << " copies\n";
  for (int device = 0; device < 4; ++device)
    std::cout << "device " << device << ": " << decision.split.loads()[device] << " rows\n";

  // Device 0 had 800 of 1400 rows, 2.3 times the mean.
  SY_CHECK_LE(decision.split.busiest(), 1400 / 4 + 20);
}
