// The few slots, of many, whose experts are worth least, found in one pass for several copies.  Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::offload {

class CheapestSlots {
 public:
  // The worth of an empty slot, which goes first.
  static constexpr int64_t kEmpty = INT64_MIN;

  // Begins anew, to keep the `most` cheapest slots that are added.
  void Start(size_t most) {
    most_ = most;
    slots_.clear();
  }
  // In any order; Sort when all are there.
  void Add(int32_t slot, int64_t worth) {
    if (slots_.size() < most_ || worth <= dearest_) Insert({worth, slot});
  }
  void Sort() { std::sort(slots_.rbegin(), slots_.rend()); }

  bool empty() const { return slots_.empty(); }
  // The slot worth least, of equal ones the lowest.  REQUIRES: not empty, sorted.
  int32_t slot() const { return slots_.back().second; }
  int64_t worth() const { return slots_.back().first; }
  void Pop() {
    SY_CHECK(!slots_.empty());
    slots_.pop_back();
  }

 private:
  void Insert(const std::pair<int64_t, int32_t>& added) {
    if (slots_.size() == most_) {
      if (most_ == 0 || added >= slots_.front()) return;
      std::pop_heap(slots_.begin(), slots_.end());
      slots_.pop_back();
    }
    slots_.push_back(added);
    std::push_heap(slots_.begin(), slots_.end());
    dearest_ = slots_.front().first;
  }

  size_t most_ = 0;
  int64_t dearest_ = INT64_MAX;  // of those kept
  // (worth, slot): a heap, the dearest first; when sorted, the cheapest is last.
  std::vector<std::pair<int64_t, int32_t>> slots_;
};

}  // namespace switchyard::offload
