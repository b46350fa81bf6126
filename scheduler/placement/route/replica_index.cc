#include "scheduler/placement/route/replica_index.h"

namespace switchyard::placement {

ReplicaIndex::ReplicaIndex(const Placement& placement) {
  const int num_devices = placement.num_devices();
  expert_offsets_.assign(placement.num_experts + 1, 0);
  ForEachReplica(placement, [&](int32_t, int32_t expert) { ++expert_offsets_[expert + 1]; });
  for (int expert = 0; expert < placement.num_experts; ++expert) expert_offsets_[expert + 1] += expert_offsets_[expert];
  const int32_t num_replicas = expert_offsets_.back();
  devices_.resize(num_replicas);
  experts_.resize(num_replicas);
  std::vector<int32_t> next(expert_offsets_.begin(), expert_offsets_.end() - 1);
  device_offsets_.assign(num_devices + 1, 0);
  ForEachReplica(placement, [&](int32_t device, int32_t expert) {
    const int32_t replica = next[expert]++;
    devices_[replica] = device;
    experts_[replica] = expert;
    ++device_offsets_[device + 1];
  });
  for (int device = 0; device < num_devices; ++device) device_offsets_[device + 1] += device_offsets_[device];
  by_device_.resize(num_replicas);
  std::vector<int32_t> at(device_offsets_.begin(), device_offsets_.end() - 1);
  for (int32_t replica = 0; replica < num_replicas; ++replica) by_device_[at[devices_[replica]]++] = replica;
}

}  // namespace switchyard::placement
