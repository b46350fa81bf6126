// ReplicaIndex: the replicas of a placement, numbered, by expert and by device.
//
// A replica is one (expert, device); slots do not matter.  Replicas are numbered by expert, then device, so that arrays
// [P] over them mean the same on every rank.  Immutable after construction; thread-safe to read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::placement {

class ReplicaIndex {
 public:
  ReplicaIndex() = default;
  // REQUIRES: CheckPlacement(placement) is OK.
  explicit ReplicaIndex(const Placement& placement);

  int num_experts() const { return static_cast<int>(expert_offsets_.size()) - 1; }
  int num_devices() const { return static_cast<int>(device_offsets_.size()) - 1; }
  int num_replicas() const { return static_cast<int>(devices_.size()); }  // P

  // The replicas of an expert are [first, end), by rising device.
  int32_t FirstReplica(int expert) const { return expert_offsets_[expert]; }
  int32_t EndReplica(int expert) const { return expert_offsets_[expert + 1]; }
  int NumReplicas(int expert) const { return EndReplica(expert) - FirstReplica(expert); }
  int32_t DeviceOf(int32_t replica) const { return devices_[replica]; }
  int32_t ExpertOf(int32_t replica) const { return experts_[replica]; }
  // The replicas on a device, by rising expert.
  absl::Span<const int32_t> OnDevice(int device) const {
    return absl::MakeConstSpan(by_device_)
        .subspan(device_offsets_[device], device_offsets_[device + 1] - device_offsets_[device]);
  }

 private:
  std::vector<int32_t> expert_offsets_ = {0};  // [E + 1]
  std::vector<int32_t> devices_;               // [P]
  std::vector<int32_t> experts_;               // [P]
  std::vector<int32_t> device_offsets_ = {0};  // [R + 1]
  std::vector<int32_t> by_device_;             // [P] replicas
};

}  // namespace switchyard::placement
