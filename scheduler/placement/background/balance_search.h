// The few changes of one layer's placement that make its busiest device less busy by more than their copies cost.
//
// Local search from the present placement: relieves the devices under most pressure by giving one of their experts
// another host, by moving it, by exchanging it for a smaller one, or by taking a replica's slot.  Changes are judged on
// other draws of noise than they were searched on, so that a change which fits one draw only is not made:
//   value = seconds_per_load * (busiest before - after) - seconds_per_copy * copies
// The best prefix of the changes is kept, less every change that does not earn its own copies.  Pure, deterministic.
#pragma once

#include <memory>

#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/split_cases.h"

namespace switchyard::placement {

struct BalanceProblem {
  const Placement* present = nullptr;
  std::shared_ptr<const CaseRows> search, judge;
  int layer_slots = 0;          // of a device
  double seconds_per_load = 0;  // within the horizon, by one mean device's rows more on the busiest device
  double seconds_per_copy = 0;
};

struct BalanceResult {
  Placement placement;
  LayerFacts facts;
};

BalanceResult SearchBalance(const BalanceProblem& problem);

}  // namespace switchyard::placement
