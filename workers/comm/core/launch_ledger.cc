#include "workers/comm/core/launch_ledger.h"

#include "scheduler/base/split_mix.h"

namespace switchyard::comm {
void LaunchLedger::Record(const OpKey& key) {
  Lane& lane = lanes_[static_cast<int>(key.comm_class)];
  lane.hash = SplitMix(lane.hash ^ static_cast<uint64_t>(key.op));
  lane.hash = SplitMix(lane.hash ^ static_cast<uint64_t>(key.sequence));
  lane.hash = SplitMix(lane.hash ^ static_cast<uint64_t>(key.bytes));
  lane.hash = SplitMix(lane.hash ^ static_cast<uint64_t>(key.root));
  lane.hash = SplitMix(lane.hash ^ key.tag);
  ++lane.count;
}

void LaunchLedger::RecordInOrder(const OpKey& key) {
  Record(key);
  order_hash_ = SplitMix(order_hash_ ^ static_cast<uint64_t>(key.comm_class));
  order_hash_ = SplitMix(order_hash_ ^ lanes_[static_cast<int>(key.comm_class)].hash);
}

uint64_t LaunchLedger::hash() const {
  uint64_t hash = order_hash_;
  for (const Lane& lane : lanes_) hash = SplitMix(hash ^ lane.hash);
  return hash;
}

int64_t LaunchLedger::num_launched() const {
  int64_t launched = 0;
  for (const Lane& lane : lanes_) launched += lane.count;
  return launched;
}

}  // namespace switchyard::comm
