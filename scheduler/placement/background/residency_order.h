// The order in which experts move, so that memory is never exceeded and no expert is ever without a host.
//
// One spare slot a device is enough, whatever cycles the moves form: at any time at most one device exceeds its limits,
// by one expert; the next move takes something that has to leave it to where it belongs, and only that device may
// exceed its limits then.  Moves that need not wait for one another share a migration.  Pure, deterministic.
#pragma once

#include <vector>

#include "scheduler/placement/background/residency_plan.h"

namespace switchyard::placement {

// Migrations that lead from `from` to `to`, layers in the order of `layer_order` [L].  Of `to` only what is hosted
// matters: it is rewritten to the slots that experts end in.  REQUIRES: CheckResidency holds of both,
// layer_slots + 1 slots a layer and device, the same experts and devices.
std::vector<ResidencyMigration> OrderMoves(const std::vector<LayerResidency>& from, const ResidencyLimits& limits,
                                           const std::vector<int>& layer_order, std::vector<LayerResidency>* to);

}  // namespace switchyard::placement
