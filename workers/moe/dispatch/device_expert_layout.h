// DeviceExpertLayout: a copy of an ExpertLayout in the memory of one rank's device, as ops read it.  Owns that memory.
// A recorded graph reads the copy, so another layout needs another recording.  Immutable after Make; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/ops/exchange/expert_places.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class DeviceExpertLayout {
 public:
  // The copy of no layout.
  DeviceExpertLayout() = default;
  // Copies the layout, for `rank`, to the stream's device.  Waits for the stream: not while recording.
  // Errors: ResourceExhausted, the device's.
  static absl::StatusOr<DeviceExpertLayout> Make(const Stream& stream, const ExpertLayout& layout, int rank);

  // Whether this is the copy of that layout, for that rank.
  bool Shows(const ExpertLayout& layout, int rank) const { return rank == rank_ && layout == layout_; }
  // Whether every expert e is in slot e of this rank: then nothing is looked up.
  bool slots_are_experts() const { return slots_are_experts_; }
  ops::PlaceTable view() const;

 private:
  ExpertLayout layout_;
  int rank_ = -1;
  bool slots_are_experts_ = false;
  int64_t num_places_ = 0;
  Tensor numbers_;  // int32: place_offsets, slot_here, places
};

}  // namespace switchyard::moe
