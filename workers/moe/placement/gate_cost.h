// How long a stretch of a pass takes beside what it is believed to compute, measured once: the median of the first
// gates, and a constant from then on.
//
// A cache policy weighs copies against the time until the next gate.  Rates say what experts' work takes of it;
// attention, exchanges and the host's own work depend on model and machine.  A constant, so that plans depend on what
// rows need and not on how busy the machine was lately.  Time is an argument.  Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace switchyard::moe {

class GateCost {
 public:
  // gates: how many are measured; 0 = none ever.
  explicit GateCost(int gates) : gates_(gates) {}

  // A stretch took `took` nanoseconds where `expected` were computed for.
  void Add(int64_t took, int64_t expected) {
    if (measured_ || gates_ == 0) return;
    samples_.push_back(std::max<int64_t>(0, took - expected));
    if (static_cast<int>(samples_.size()) < gates_) return;
    const auto middle = samples_.begin() + gates_ / 2;
    std::nth_element(samples_.begin(), middle, samples_.end());
    beside_ = *middle;
    measured_ = true;
    samples_ = {};
  }
  // Nanoseconds, at least 0; `before` until all gates are measured.
  int64_t beside(int64_t before) const { return measured_ ? beside_ : before; }
  bool measured() const { return measured_; }

 private:
  const int gates_;
  bool measured_ = false;
  int64_t beside_ = 0;
  std::vector<int64_t> samples_;
};

}  // namespace switchyard::moe
