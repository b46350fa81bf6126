// A server's flags of expert placement, which every worker receives as it registers.
//
// Slots are counted for one MoE layer on one worker: E / R residents (rounded up), and `spare_slots` that the per-step
// balancer changes layer by layer (layer_decision.h).  Plain data.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/placement/placement_mode.h"

namespace switchyard::placement {

struct PlacementSettings {
  static constexpr int kMaxSlots = 64;

  PlacementMode mode = PlacementMode::kAuto;
  int spare_slots = 0;

  // Whether experts have slots: in which the mode puts replicas.  (auto without spare ones has none: where all workers
  // are on one machine they read each other's experts in place, else it is as static.)
  bool has_slots() const { return spare_slots > 0; }

  bool operator==(const PlacementSettings& other) const = default;
};

// InvalidArgument: a value out of range or two that contradict each other, one a line, named as the server's flags.
absl::Status CheckPlacementSettings(const PlacementSettings& settings);

// Whether workers may have the expert budget --expert_memory=`share`; empty: there is none.  InvalidArgument: experts
// have replicas.
absl::Status CheckExpertMemory(const PlacementSettings& settings, absl::string_view share);

// Whether a worker of a group of `num_devices` can have so many experts more than its own.  A single worker has all
// experts, and any number of slots stays empty.  InvalidArgument with the figures, named as the server's flags.
absl::Status CheckSlots(const PlacementSettings& settings, int num_experts, int num_devices);

// Experts of one layer that a worker has at a time: residents and what is in spare slots.
int ExpertsOfLayer(const PlacementSettings& settings, int num_experts, int num_devices);

}  // namespace switchyard::placement
