// Why each expert is where it is in the per-step balancer's slots, by (layer, device, expert): an expert that only
// changes its slot was not moved.  It means nothing of residents.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

enum class SlotOrigin : uint8_t {
  kStart,     // there since the group began
  kEstimate,  // an estimate, before its layer's gate ran
  kGate,      // the layer's gate had run, and the copy paid
};
inline constexpr int kNumSlotOrigins = 3;

class SlotOrigins {
 public:
  SlotOrigins(int num_layers, int num_devices, int num_experts)
      : num_devices_(num_devices),
        num_experts_(num_experts),
        origins_(static_cast<size_t>(num_layers) * num_devices * num_experts, SlotOrigin::kStart) {}

  // A decision ordered these copies.
  void Changed(int layer, absl::Span<const SlotChange> changes, SlotOrigin origin) {
    for (const SlotChange& change : changes) {
      if (change.expert != kEmptySlot) origins_[Index(layer, change.device, change.expert)] = origin;
    }
  }
  // REQUIRES: indices of the shape; where the device does not hold the expert it is of no meaning.
  SlotOrigin Of(int layer, int device, int expert) const { return origins_[Index(layer, device, expert)]; }

 private:
  size_t Index(int layer, int device, int expert) const {
    return (static_cast<size_t>(layer) * num_devices_ + device) * num_experts_ + expert;
  }

  size_t num_devices_, num_experts_;
  std::vector<SlotOrigin> origins_;  // [L, R, E]
};

}  // namespace switchyard::placement
