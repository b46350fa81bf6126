// Where the experts of one MoE layer are: which device holds which, one or several replicas of each.
//
// Plain data; compares by value.  Slots matter: an expert that stays in its slot does not move.  The workers' form of
// it is ExpertLayout (workers/moe/dispatch/expert_layout.h).  Does not say which rows a replica gets: split.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace switchyard::placement {

inline constexpr int32_t kEmptySlot = -1;

struct Placement {
  int num_experts = 0;                      // E
  std::vector<std::vector<int32_t>> slots;  // [R][slots of the device] expert or kEmptySlot

  int num_devices() const { return static_cast<int>(slots.size()); }
  bool Holds(int device, int expert) const;
  // Devices that hold the expert, rising.
  std::vector<int32_t> DevicesOf(int expert) const;
  bool operator==(const Placement& other) const = default;
  // "[0 1] [2 3] [4 -]"
  std::string ToString() const;
};

// What every placement has to keep: ids in range, each expert somewhere, no expert twice on a device.
// InvalidArgument with the first breach.
absl::Status CheckPlacement(const Placement& placement);

// E / R neighbouring experts a device, the first E mod R devices one more; every device has ⌈E/R⌉ + spare_slots slots.
Placement ContiguousPlacement(int num_experts, int num_devices, int spare_slots);

// Copies that lead from one to the other: (device, slot) whose expert is new there.
struct SlotChange {
  int32_t device = 0;
  int32_t slot = 0;
  int32_t expert = 0;  // that comes in; kEmptySlot = the slot is emptied, which costs nothing
  bool operator==(const SlotChange& other) const = default;
};
// In order of (device, slot).  REQUIRES: the same experts, devices and slots per device.
std::vector<SlotChange> ChangesBetween(const Placement& from, const Placement& to);

// `to` with its experts relabelled within each device so that what stays on a device stays in its slot.
Placement KeepSlots(const Placement& from, Placement to);

}  // namespace switchyard::placement
