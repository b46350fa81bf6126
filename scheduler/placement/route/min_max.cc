#include "scheduler/placement/route/min_max.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

int64_t CeilOf(int64_t rows, int64_t parts) { return (rows + parts - 1) / parts; }

// The breadth-first search of one bound; its arrays are kept between searches.
class Pusher {
 public:
  Pusher(const ReplicaIndex& replicas, MinMaxLoads& loads) : replicas_(replicas), state_(loads) {
    reached_.resize(replicas.num_devices());
    expanded_.resize(replicas.num_experts());
    from_.resize(replicas.num_devices());
    to_.resize(replicas.num_devices());
  }

  // Pushes until no device is above the bound (true), or those above cannot be relieved (false; Reached returns their
  // set).
  bool PushBelow(int64_t bound) {
    while (true) {
      queue_.clear();
      std::fill(reached_.begin(), reached_.end(), uint8_t{0});
      std::fill(expanded_.begin(), expanded_.end(), uint8_t{0});
      for (int32_t device = 0; device < replicas_.num_devices(); ++device) {
        if (state_.loads[device] <= bound) continue;
        reached_[device] = 1;
        from_[device] = -1;
        queue_.push_back(device);
      }
      if (queue_.empty()) return true;
      const int32_t below = Search(bound);
      if (below < 0) return false;
      Push(below, bound);
    }
  }
  const std::vector<uint8_t>& Reached() const { return reached_; }

 private:
  // The first device below the bound; -1: none can be reached.
  int32_t Search(int64_t bound) {
    for (size_t head = 0; head < queue_.size(); ++head) {
      for (const int32_t replica : replicas_.OnDevice(queue_[head])) {
        const int32_t expert = replicas_.ExpertOf(replica);
        if (state_.rows[replica] == 0 || expanded_[expert] != 0) continue;
        expanded_[expert] = 1;
        for (int32_t other = replicas_.FirstReplica(expert); other < replicas_.EndReplica(expert); ++other) {
          const int32_t device = replicas_.DeviceOf(other);
          if (reached_[device] != 0) continue;
          reached_[device] = 1;
          from_[device] = replica;
          to_[device] = other;
          if (state_.loads[device] < bound) return device;
          queue_.push_back(device);
        }
      }
    }
    return -1;
  }

  void Push(int32_t below, int64_t bound) {
    int64_t rows = bound - state_.loads[below];
    int32_t device = below;
    for (; from_[device] >= 0; device = replicas_.DeviceOf(from_[device])) {
      rows = std::min(rows, state_.rows[from_[device]]);
    }
    rows = std::min(rows, state_.loads[device] - bound);
    state_.loads[device] -= rows;
    state_.loads[below] += rows;
    for (device = below; from_[device] >= 0; device = replicas_.DeviceOf(from_[device])) {
      state_.rows[from_[device]] -= rows;
      state_.rows[to_[device]] += rows;
    }
  }

  const ReplicaIndex& replicas_;
  MinMaxLoads& state_;
  std::vector<int32_t> queue_;
  std::vector<uint8_t> reached_;   // [R]
  std::vector<uint8_t> expanded_;  // [E]
  std::vector<int32_t> from_;      // [R] the replica that gives on the path to this device; -1 = a start
  std::vector<int32_t> to_;        // [R] the replica on this device that takes
};

// A lower bound: an even spread of all rows, and each expert's rows spread over its own replicas.
int64_t FirstBound(const ReplicaIndex& replicas, const MinMaxLoads& state) {
  int64_t total = 0, bound = 0;
  for (int expert = 0; expert < replicas.num_experts(); ++expert) {
    int64_t rows = 0;
    for (int32_t replica = replicas.FirstReplica(expert); replica < replicas.EndReplica(expert); ++replica) {
      rows += state.rows[replica];
    }
    total += rows;
    bound = std::max(bound, CeilOf(rows, replicas.NumReplicas(expert)));
  }
  return std::max(bound, CeilOf(total, replicas.num_devices()));
}

}  // namespace

MinMaxLoads MinimizeBusiestFrom(const ReplicaIndex& replicas, std::vector<int64_t> replica_rows) {
  SY_CHECK_EQ(static_cast<int>(replica_rows.size()), replicas.num_replicas());
  MinMaxLoads state;
  state.rows = std::move(replica_rows);
  state.loads.assign(replicas.num_devices(), 0);
  for (int32_t replica = 0; replica < replicas.num_replicas(); ++replica) {
    state.loads[replicas.DeviceOf(replica)] += state.rows[replica];
  }
  int64_t bound = FirstBound(replicas, state);
  Pusher pusher(replicas, state);
  while (!pusher.PushBelow(bound)) {
    // The devices that were reached form a closed set, which has at least `bound` on each device, more on some.
    int64_t rows = 0, devices = 0;
    for (int device = 0; device < replicas.num_devices(); ++device) {
      if (pusher.Reached()[device] == 0) continue;
      rows += state.loads[device];
      ++devices;
    }
    bound = CeilOf(rows, devices);
  }
  state.busiest = *std::max_element(state.loads.begin(), state.loads.end());
  return state;
}

MinMaxLoads MinimizeBusiest(const ReplicaIndex& replicas, absl::Span<const int64_t> expert_rows) {
  std::vector<int64_t> rows(replicas.num_replicas(), 0);
  PourRows(replicas, expert_rows, absl::MakeSpan(rows));
  return MinimizeBusiestFrom(replicas, std::move(rows));
}

void PourRows(const ReplicaIndex& replicas, absl::Span<const int64_t> expert_rows, absl::Span<int64_t> replica_rows) {
  SY_CHECK_EQ(static_cast<int>(expert_rows.size()), replicas.num_experts());
  std::vector<int64_t> loads(replicas.num_devices(), 0);
  for (int32_t replica = 0; replica < replicas.num_replicas(); ++replica) {
    loads[replicas.DeviceOf(replica)] += replica_rows[replica];
  }
  std::vector<int32_t> order;
  for (int expert = 0; expert < replicas.num_experts(); ++expert) {
    const int32_t first = replicas.FirstReplica(expert);
    if (replicas.NumReplicas(expert) > 1) {
      order.push_back(expert);
      continue;
    }
    replica_rows[first] += expert_rows[expert];
    loads[replicas.DeviceOf(first)] += expert_rows[expert];
  }
  // Experts with few replicas go first: the others fill the rest.
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return replicas.NumReplicas(a) < replicas.NumReplicas(b); });
  std::vector<int32_t> lowest;
  for (const int32_t expert : order) {
    if (expert_rows[expert] == 0) continue;
    lowest.clear();
    for (int32_t r = replicas.FirstReplica(expert); r < replicas.EndReplica(expert); ++r) lowest.push_back(r);
    const auto load = [&](int32_t replica) -> int64_t& { return loads[replicas.DeviceOf(replica)]; };
    std::sort(lowest.begin(), lowest.end(),
              [&](int32_t a, int32_t b) { return load(a) != load(b) ? load(a) < load(b) : a < b; });
    // Rows fill the `used` least loaded ones up to `level`.
    int64_t sum = load(lowest[0]) + expert_rows[expert];
    size_t used = 1;
    for (; used < lowest.size() && sum > load(lowest[used]) * static_cast<int64_t>(used); ++used) {
      sum += load(lowest[used]);
    }
    const int64_t level = sum / static_cast<int64_t>(used), extra = sum % static_cast<int64_t>(used);
    for (size_t i = 0; i < used; ++i) {
      const int64_t target = level + (static_cast<int64_t>(i) < extra ? 1 : 0);
      replica_rows[lowest[i]] += target - load(lowest[i]);
      load(lowest[i]) = target;
    }
  }
}

}  // namespace switchyard::placement
