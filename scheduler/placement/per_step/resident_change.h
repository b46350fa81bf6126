// A migration of the background balancer as the per-step balancer adopts it: residents arrive and depart, transient
// slots stay.
//
// The empty slots among a layer's residents are the per-step balancer's, as many before as after.  Where an arrival is
// in a transient slot already, that slot becomes empty.  Slots of moves are ignored: what stays moves up, what arrives
// comes behind it, so that every rank has the same slots.  Pure, deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/slot_table.h"

namespace switchyard::placement {

// `residents` without their empty slots, then `transient_slots` empty ones a device: the per-step balancer's beginning.
Placement WithTransientSlots(const Placement& residents, int transient_slots);

struct ResidentChange {
  int layer = 0;
  Placement residents;  // empty slots are the per-step balancer's
  SlotTable table;
};

// The layers that the migration changes, rising.  residents, tables [L]: as they are; tables hold residents in their
// slots.  InvalidArgument: a move that names what is not there, an arrival of what is resident there already, an expert
// that would have no resident.
absl::StatusOr<std::vector<ResidentChange>> ChangeResidents(const ResidencyMigration& migration,
                                                            absl::Span<const Placement> residents,
                                                            absl::Span<const SlotTable> tables);

}  // namespace switchyard::placement
