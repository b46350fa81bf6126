// SlotTable: the expert in each slot of each device for one layer, and the slots in flight.
//
// Only decisions advance it: a slot is in flight from the decision that changes it until the first decision that sends
// rows to it, which waits for the copy.  When the copy ends makes no difference, so that all ranks have the same table.
// Thread-compatible; compares by value.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"
#include "scheduler/placement/route/replica_index.h"
#include "scheduler/placement/route/split.h"

namespace switchyard::placement {

// A copy that rows need: the device waits for it, and never sends the rows elsewhere.
struct AwaitedCopy {
  int32_t device = 0;
  int32_t slot = 0;
  int64_t decision = 0;  // that ordered it
  bool operator==(const AwaitedCopy& other) const = default;
};

class SlotTable {
 public:
  SlotTable() = default;
  // Everything is there.  REQUIRES: CheckPlacement(placement) is OK.
  explicit SlotTable(Placement placement);
  // in_flight: as below, of the placement's shape.
  SlotTable(Placement placement, std::vector<std::vector<int64_t>> in_flight);

  const Placement& placement() const { return placement_; }
  const ReplicaIndex& replicas() const { return replicas_; }
  // [R][slots]: the decision whose copy is in flight, -1 = there.
  const std::vector<std::vector<int64_t>>& in_flight() const { return in_flight_; }

  // Copies are ordered.  REQUIRES: the placement that results is valid.
  void Change(absl::Span<const SlotChange> changes, int64_t decision);
  // Copies in flight whose replica gets rows, by device and slot; they count as there from now on.
  std::vector<AwaitedCopy> Await(const SplitTable& split);

  bool operator==(const SlotTable& other) const {
    return placement_ == other.placement_ && in_flight_ == other.in_flight_;
  }

 private:
  Placement placement_;
  ReplicaIndex replicas_;
  std::vector<std::vector<int64_t>> in_flight_;
};

// How many experts are copied.
int64_t NumCopies(absl::Span<const SlotChange> changes);

}  // namespace switchyard::placement
