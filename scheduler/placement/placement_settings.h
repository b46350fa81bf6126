// A server's flags of expert placement, which every worker receives as it registers.
//
// Slots are counted for one MoE layer on one worker: E / R residents (rounded up), `replica_slots` more residents that
// the background balancer fills (residency.h), and `spare_slots` that the per-step balancer changes layer by layer
// (layer_decision.h).  A background balancer needs one slot more on each worker, for all layers together, for what
// arrives before something else departs.  Plain data.  Costs and places are an epoch's (group_placement.h).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/placement/placement_mode.h"

namespace switchyard::placement {

struct PlacementSettings {
  static constexpr int kMaxSlots = 64;  // of either kind
  static constexpr int64_t kMaxRebalanceSteps = 1'000'000;

  PlacementMode mode = PlacementMode::kStatic;
  int spare_slots = 0;
  int replica_slots = 0;
  int64_t rebalance_steps = 0;  // the background balancer plans after so many steps; 0 = never

  bool rebalances() const { return rebalance_steps > 0; }
  bool operator==(const PlacementSettings& other) const = default;
};

// InvalidArgument: a value out of range or two that contradict each other, one a line, named as the server's flags.
absl::Status CheckPlacementSettings(const PlacementSettings& settings);

// Whether workers may have the expert budget --expert_memory=`share`; empty: there is none.  InvalidArgument: experts
// have replicas.
absl::Status CheckExpertMemory(PlacementMode mode, absl::string_view share);

// Whether a worker of a group of `num_devices` can have so many experts more than its own.  A single worker has all
// experts, and any number of slots stays empty.  InvalidArgument with the figures, named as the server's flags.
absl::Status CheckSlots(const PlacementSettings& settings, int num_experts, int num_devices);

// Experts of one layer that a worker has at a time: residents, replicas of the background balancer, spare slots of the
// per-step balancer.
int ExpertsOfLayer(const PlacementSettings& settings, int num_experts, int num_devices);

// Slots of a device in a layer's resident placement, as GroupPlacement has them.
int ResidentSlots(const PlacementSettings& settings, int num_experts, int num_devices);

}  // namespace switchyard::placement
