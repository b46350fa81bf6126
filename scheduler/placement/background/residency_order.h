// The order in which experts move, so that memory is never exceeded and no expert is ever without a host.
//
// One spare slot a device is enough, whatever cycles the moves form: at any time at most one device holds one expert
// more than its limits; the next move then takes away something that has to leave that device, to where it has to go,
// and that device, which was within its limits, is the only one that may be over them now.  Moves that need not wait
// for one another share a stage.  Pure, deterministic.
#pragma once

#include <vector>

#include "scheduler/placement/background/residency_plan.h"

namespace switchyard::placement {

// Stages that lead from `from` to `to`; layers first in the order of `layer_order` [L].  The slots that `to` names do
// not matter, what is hosted does: `to` is rewritten to the slots in which experts come to stand.
// REQUIRES: CheckResidency holds of both, layer_slots + 1 slots a layer and device, the same experts and devices.
std::vector<ResidencyMigration> OrderMoves(const std::vector<LayerResidency>& from, const ResidencyLimits& limits,
                                           const std::vector<int>& layer_order, std::vector<LayerResidency>* to);

}  // namespace switchyard::placement
