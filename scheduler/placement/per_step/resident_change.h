// A stage of the background balancer as the per-step balancer takes it over: residents arrive and depart, transient
// slots stay.
//
// In a layer's residents the empty slots are the per-step balancer's.  A device has as many of those before and after,
// however many residents it has.  What arrives where the per-step balancer had it already empties that slot.  Slots of
// moves are not looked at: what stays moves up, what arrives comes behind it, so that every rank has the same slots.
// Pure, deterministic.  Does not decide stages (residency.h) or copy.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/slot_table.h"

namespace switchyard::placement {

// What the per-step balancer begins with: `residents` without their empty slots, then `transient_slots` empty ones a
// device.
Placement WithTransientSlots(const Placement& residents, int transient_slots);

// Whether another rank computes the expert's rows after it: of the others nothing is changed here.
inline bool ChangesHost(MoveKind kind) { return kind != MoveKind::kLoad && kind != MoveKind::kOffload; }

struct ResidentChange {
  int layer = 0;
  Placement residents;  // empty slots are the per-step balancer's
  SlotTable table;
};

// The layers that the stage changes, rising.  residents, tables [L]: as they are; tables hold residents in their slots.
// Experts that change between host memory and a device's (load, offload) stay where they are: what is in which memory
// is not of this.
// InvalidArgument: a move that names what is not there, an arrival of what is resident there already, a load or offload
// where the expert is not resident after the stage, an expert that would have no resident.
absl::StatusOr<std::vector<ResidentChange>> ChangeResidents(const ResidencyMigration& stage,
                                                            absl::Span<const Placement> residents,
                                                            absl::Span<const SlotTable> tables);

}  // namespace switchyard::placement
