// The order in which experts move, so that memory is never exceeded and no expert is ever without a host.
//
// One spare slot a device is enough, whatever cycles the moves form: at any time at most one device hosts more than its
// slots, by one expert; the next move takes something that has to leave it to where it belongs, and only that device
// may host too many then.  Moves that need not wait for one another share a migration.  Pure, deterministic.
#pragma once

#include <vector>

#include "scheduler/placement/background/residency_plan.h"

namespace switchyard::placement {

// Migrations that lead from `from` to `to`, layers in the order of `layer_order` [L].  Of `to` only what is hosted
// matters: it is rewritten to the slots that experts end in.  A device's spare slot is one in each layer's placement
// and one for the weights of all layers: no migration brings it more than that before its departures.
// REQUIRES: CheckResidency holds of both, layer_slots + 1 slots a layer and device, the same experts and devices.
std::vector<ResidencyMigration> OrderMoves(const std::vector<Placement>& from, int layer_slots,
                                           const std::vector<int>& layer_order, std::vector<Placement>* to);

}  // namespace switchyard::placement
