#include "scheduler/placement/route/slot_table.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {

SlotTable::SlotTable(Placement placement) : placement_(std::move(placement)) {
  SY_CHECK_OK(CheckPlacement(placement_));
  replicas_ = ReplicaIndex(placement_);
  for (const std::vector<int32_t>& device : placement_.slots) in_flight_.emplace_back(device.size(), -1);
}

SlotTable::SlotTable(Placement placement, std::vector<std::vector<int64_t>> in_flight)
    : placement_(std::move(placement)), in_flight_(std::move(in_flight)) {
  SY_CHECK_OK(CheckPlacement(placement_));
  SY_CHECK_EQ(in_flight_.size(), placement_.slots.size());
  for (size_t device = 0; device < in_flight_.size(); ++device) {
    SY_CHECK_EQ(in_flight_[device].size(), placement_.slots[device].size());
  }
  replicas_ = ReplicaIndex(placement_);
}

void SlotTable::Change(absl::Span<const SlotChange> changes, int64_t decision) {
  if (changes.empty()) return;
  for (const SlotChange& change : changes) {
    placement_.slots[change.device][change.slot] = change.expert;
    in_flight_[change.device][change.slot] = change.expert == kEmptySlot ? -1 : decision;
  }
  SY_CHECK_OK(CheckPlacement(placement_));
  replicas_ = ReplicaIndex(placement_);
}

std::vector<AwaitedCopy> SlotTable::Await(const SplitTable& split) {
  std::vector<AwaitedCopy> awaited;
  for (int32_t device = 0; device < placement_.num_devices(); ++device) {
    for (int32_t slot = 0; slot < static_cast<int32_t>(in_flight_[device].size()); ++slot) {
      if (in_flight_[device][slot] < 0) continue;
      const int32_t expert = placement_.slots[device][slot];
      bool used = false;
      for (int rank = 0; rank < split.num_ranks() && !used; ++rank) {
        for (const SplitPiece& piece : split.Pieces(rank, expert)) used = used || piece.device == device;
      }
      if (!used) continue;
      awaited.push_back({.device = device, .slot = slot, .decision = in_flight_[device][slot]});
      in_flight_[device][slot] = -1;
    }
  }
  return awaited;
}

int64_t NumCopies(absl::Span<const SlotChange> changes) {
  return std::count_if(changes.begin(), changes.end(),
                       [](const SlotChange& change) { return change.expert != kEmptySlot; });
}

}  // namespace switchyard::placement
