// The replica table: an ExpertLayout as one rank's device reads it, a device tensor with an epoch.
//
// Owns the memory; a view of it stays valid as long as the table.  A recorded graph holds the table that it was
// recorded with, so a new epoch's layout wants a new recording.  Immutable after Make; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/ops/exchange/expert_places.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class ReplicaTable {
 public:
  // Shows nothing.
  ReplicaTable() = default;
  // The layout as `rank` sees it, on the stream's device.  Waits for the stream: not while it is recorded.
  // Errors: ResourceExhausted, the device's.
  static absl::StatusOr<ReplicaTable> Make(const Stream& stream, const ExpertLayout& layout, int rank);

  // Whether this is the table of that layout, for that rank.
  bool Shows(const ExpertLayout& layout, int rank) const { return rank == rank_ && layout == layout_; }
  int64_t epoch() const { return layout_.epoch(); }
  // Whether expert e is in slot e of this rank, for all of them: then there is nothing to look up.
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
