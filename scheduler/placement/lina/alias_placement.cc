#include "scheduler/placement/lina/alias_placement.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/placement/route/min_max.h"
#include "scheduler/placement/route/replica_index.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

// Fills slots one by one and keeps the rows that each replica would take.
class Filler {
 public:
  // popularity [E]: kRow is the mean of a device.
  Filler(const Placement& base, const Placement& present, const popularity::Popularity& popularity)
      : placement_(base), present_(present), num_replicas_(base.num_experts, 0) {
    const ReplicaIndex replicas(base);
    const MinMaxLoads split = MinimizeBusiest(replicas, popularity);
    loads_ = split.loads;
    devices_.resize(base.num_devices());
    hosts_.resize(base.num_experts);
    holds_.assign(base.num_devices(), std::vector<uint8_t>(base.num_experts, 0));
    for (int32_t r = 0; r < replicas.num_replicas(); ++r) {
      Hold(replicas.DeviceOf(r), {.expert = replicas.ExpertOf(r), .rows = split.rows[r]});
    }
    for (int device = 0; device < base.num_devices(); ++device) {
      devices_[device].num_empty =
          static_cast<int>(std::count(base.slots[device].begin(), base.slots[device].end(), kEmptySlot));
      num_empty_ += devices_[device].num_empty;
    }
  }

  // Vose's loop: the emptiest device below the mean takes what it lacks from another one.
  void TopUp() {
    while (true) {
      int32_t lowest = -1;
      for (int32_t d = 0; d < NumDevices(); ++d) {
        if (devices_[d].num_empty == 0 || loads_[d] >= popularity::kRow) continue;
        if (lowest < 0 || loads_[d] < loads_[lowest]) lowest = d;
      }
      if (lowest < 0 || !TakeFromAnother(lowest)) return;
    }
  }

  // One replica after the other for the expert that has the fewest.
  void Spread() {
    std::vector<uint8_t> everywhere(num_replicas_.size(), 0);
    while (num_empty_ > 0) {
      int32_t next = -1;
      for (int32_t e = 0; e < static_cast<int32_t>(num_replicas_.size()); ++e) {
        if (everywhere[e] != 0) continue;
        if (next < 0 || num_replicas_[e] < num_replicas_[next]) next = e;
      }
      if (next < 0) return;
      const int32_t device = FarthestFrom(next);
      if (device >= 0) {
        Add(device, next, 0);
      } else {
        everywhere[next] = 1;
      }
    }
  }

  Placement Take() { return std::move(placement_); }

 private:
  struct Replica {
    int32_t expert = 0;
    int64_t rows = 0;
  };
  struct Device {
    std::vector<Replica> replicas;
    int num_empty = 0;
  };

  int NumDevices() const { return placement_.num_devices(); }

  void Hold(int32_t device, Replica replica) {
    devices_[device].replicas.push_back(replica);
    holds_[device][replica.expert] = 1;
    hosts_[replica.expert].push_back(device);
    ++num_replicas_[replica.expert];
  }

  void Add(int32_t device, int32_t expert, int64_t rows) {
    std::vector<int32_t>& slots = placement_.slots[device];
    *std::find(slots.begin(), slots.end(), kEmptySlot) = expert;
    --devices_[device].num_empty;
    --num_empty_;
    loads_[device] += rows;
    Hold(device, {.expert = expert, .rows = rows});
  }

  // Only devices above the mean give.  Prefers enough rows, then what is there already (no copy), then the fullest.
  bool TakeFromAnother(int32_t device) {
    const int64_t wanted = popularity::kRow - loads_[device];
    int32_t giver = -1;
    Replica* given = nullptr;
    std::tuple<int64_t, bool, int64_t> best = {};
    const std::vector<uint8_t>& held = holds_[device];
    for (int32_t d = 0; d < NumDevices(); ++d) {
      const int64_t may = devices_[d].num_empty > 0 ? wanted : std::min(wanted, loads_[d] - popularity::kRow);
      if (d == device || may <= 0 || loads_[d] <= popularity::kRow) continue;
      for (Replica& replica : devices_[d].replicas) {
        const int64_t rows = std::min(may, replica.rows);
        if (rows <= 0 || held[replica.expert] != 0 || rows < std::get<0>(best)) continue;
        const std::tuple<int64_t, bool, int64_t> score(rows, WasOn(device, replica.expert), loads_[d]);
        if (given == nullptr || score > best) best = score, giver = d, given = &replica;
      }
    }
    if (given == nullptr) return false;
    const int64_t rows = std::get<0>(best);
    given->rows -= rows;
    loads_[giver] -= rows;
    Add(device, given->expert, rows);
    return true;
  }

  bool WasOn(int32_t device, int32_t expert) const { return !present_.slots.empty() && present_.Holds(device, expert); }

  // The device with room that lacks the expert: the one that shares the fewest experts with its hosts, then the one
  // with more room, then by id.
  int32_t FarthestFrom(int32_t expert) const {
    int32_t best = -1;
    std::pair<int, int> best_score;
    for (int32_t d = 0; d < NumDevices(); ++d) {
      if (devices_[d].num_empty == 0 || holds_[d][expert] != 0) continue;
      int shared = 0;
      for (const int32_t other : hosts_[expert]) {
        for (const Replica& replica : devices_[d].replicas) shared += holds_[other][replica.expert];
      }
      const std::pair<int, int> score(-shared, devices_[d].num_empty);
      if (best < 0 || score > best_score) best = d, best_score = score;
    }
    return best;
  }

  Placement placement_;
  const Placement& present_;
  std::vector<Device> devices_;              // [R]
  std::vector<int64_t> loads_;               // [R]
  std::vector<std::vector<uint8_t>> holds_;  // [R][E]
  std::vector<std::vector<int32_t>> hosts_;  // [E] devices
  std::vector<int> num_replicas_;            // [E]
  int num_empty_ = 0;                        // of all devices
};

}  // namespace

Placement SpreadReplicas(const Placement& base) {
  const popularity::Popularity even(base.num_experts, 1);
  const Placement nothing;
  Filler filler(base, nothing, popularity::ScaledTo(even, base.num_devices() * popularity::kRow));
  filler.Spread();
  return filler.Take();
}

Placement FillEmptySlots(const Placement& base, const Placement& present, absl::Span<const int64_t> rows) {
  SY_CHECK_EQ(static_cast<int>(rows.size()), base.num_experts);
  Filler filler(base, present, popularity::ScaledTo(rows, base.num_devices() * popularity::kRow));
  filler.TopUp();
  if (present.slots.empty()) return filler.Take();
  Placement filled = KeepSlots(present, filler.Take());
  for (int device = 0; device < filled.num_devices(); ++device) {
    for (size_t slot = 0; slot < filled.slots[device].size(); ++slot) {
      const int32_t before = present.slots[device][slot];
      int32_t& now = filled.slots[device][slot];
      if (now == kEmptySlot && before != kEmptySlot && !filled.Holds(device, before)) now = before;
    }
  }
  return filled;
}

}  // namespace switchyard::placement
