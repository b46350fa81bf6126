// Where the experts of one MoE layer are: which device holds which, one or several replicas of each.
//
// Plain data; compares by value.  An expert that stays in its slot does not move.  ExpertLayout is the workers' form of
// it (workers/moe/dispatch/expert_layout.h); split.h says which rows a replica gets.
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

// Calls visit(device, expert) for every replica, by device and slot.
template <class Visit>
void ForEachReplica(const Placement& placement, const Visit& visit) {
  for (int32_t device = 0; device < placement.num_devices(); ++device) {
    for (const int32_t expert : placement.slots[device]) {
      if (expert != kEmptySlot) visit(device, expert);
    }
  }
}

// InvalidArgument with the first breach: an id out of range, an expert nowhere, or twice on a device.
absl::Status CheckPlacement(const Placement& placement);

// E / R neighbouring experts a device, the first E mod R devices one more; every device has ⌈E/R⌉ + spare_slots slots.
Placement ContiguousPlacement(int num_experts, int num_devices, int spare_slots);

// A slot whose expert changes.
struct SlotChange {
  int32_t device = 0;
  int32_t slot = 0;
  int32_t expert = 0;  // the new one; kEmptySlot = the slot is emptied, which costs nothing
  bool operator==(const SlotChange& other) const = default;
};
// The changes that lead from one to the other, by (device, slot).  REQUIRES: the same experts, devices and slots per
// device.
std::vector<SlotChange> ChangesBetween(const Placement& from, const Placement& to);

// `to` with each device's experts reordered so that what stays on a device stays in its slot.
Placement KeepSlots(const Placement& from, Placement to);

}  // namespace switchyard::placement
