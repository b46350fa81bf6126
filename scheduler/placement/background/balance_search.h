// The few changes of one layer's placement that make its busiest device less busy by more than their copies cost.
//
// Local search from the present placement: relieve the devices under most pressure by giving one of their experts
// another host, by moving it, by exchanging it for a smaller one, by taking a replica's slot.  What is searched is
// judged on other draws of noise than those it was searched on, so that a change which fits one draw only is not made:
//   value = seconds_per_load * (busiest before - after) - seconds_per_copy * copies - prices of memory
// The best prefix of the changes is kept, and of that every change is taken back that does not earn its own copies.
// Pure, deterministic.
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
  // [R] prices in seconds of a device's next slots of memory, cheapest first: 0 for free ones, for others what is lost
  // by offloading the expert that is there.
  std::vector<std::vector<double>> slot_prices;
  double seconds_per_load = 0;  // within the horizon, by one mean device's rows more on the busiest device
  double seconds_per_copy = 0;
  // Saved seconds have to exceed this share of what the layer costs; below it they are noise of the judge.
  double least_saving = 0.005;
  int max_changes = 0;
};

struct BalanceResult {
  Placement placement;
  LayerFacts facts;
};

BalanceResult SearchBalance(const BalanceProblem& problem);

}  // namespace switchyard::placement
