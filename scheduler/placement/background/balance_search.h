// The few changes of one layer's placement that make its busiest device less busy by more than their copies cost.
//
// Local search from the present placement: relieves the devices under most pressure by giving one of their experts
// another host, by moving it, by exchanging it for a smaller one, or by taking a replica's slot.  Changes are judged on
// other draws of noise than they were searched on, so that a change which fits one draw only is not made:
//   value = seconds_per_load * (busiest before - after) - seconds_per_copy * copies - prices of memory
// The best prefix of the changes is kept, less every change that does not earn its own copies.  Pure, deterministic.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/placement/route/split_cases.h"

namespace switchyard::placement {

struct BalanceProblem {
  const LayerResidency* present = nullptr;  // offloaded experts stay where they are
  std::shared_ptr<const CaseRows> search, judge;
  int layer_slots = 0;
  // [R] prices in seconds of a device's next slots of memory, cheapest first: 0 for free ones, else what offloading the
  // expert that is there loses.
  std::vector<std::vector<double>> slot_prices;
  double seconds_per_load = 0;  // within the horizon, by one mean device's rows more on the busiest device
  double seconds_per_copy = 0;
};

struct BalanceResult {
  Placement placement;
  LayerFacts facts;
};

BalanceResult SearchBalance(const BalanceProblem& problem);

}  // namespace switchyard::placement
