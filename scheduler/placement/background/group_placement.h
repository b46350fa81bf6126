// Where a group's experts are, as the server sends it to workers: all of it when the group begins, then migration by
// migration.
//
// Layers are MoE layers, counted from 0; devices are ranks.  residency_plan.h says what a migration does.  Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/placement/background/residency_plan.h"
#include "scheduler/placement/per_step/phase_two.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// The placement that a group begins with, and the constants of its first epoch.
struct GroupPlacement {
  int64_t epoch = 0;
  // [L] with ResidentSlots(...) slots a device (placement_settings.h), without those of the per-step balancer.  Empty:
  // neighbouring experts on a device (ContiguousPlacement).
  std::vector<Placement> residents;
  MoveCosts costs;
  bool operator==(const GroupPlacement& other) const = default;
};

// One migration of a residency plan; an epoch of its own, with its constants.
struct Migration {
  int64_t epoch = 0;
  std::vector<ResidencyMove> arrivals, departures;  // of all ranks
  MoveCosts costs;
  bool operator==(const Migration& other) const = default;
};

// The bounds of indices in a group's placement.
struct PlacementBounds {
  int layers = 0;   // L
  int experts = 0;  // E
  int devices = 0;  // R
  int slots = 0;    // of a device and layer, residents'
};

// InvalidArgument names what is out of bounds, is of another shape, or hosts an expert nowhere.
absl::Status CheckGroupPlacement(const GroupPlacement& placement, const PlacementBounds& bounds);
// InvalidArgument names the first move that is out of bounds.
absl::Status CheckMigration(const Migration& migration, const PlacementBounds& bounds);

}  // namespace switchyard::placement
