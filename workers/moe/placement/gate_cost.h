// How long a stretch of a pass takes beside what it is believed to compute, measured once: the median of the first
// gates, and a constant from then on.
//
// A cache policy weighs copies against the time until the next gate.  What of that is experts' work it is told by
// rates; attention, exchanges and the host's own work depend on the model and the machine, and are the larger part of
// a small model's step.  A constant, so that plans depend on what rows need and not on how busy the machine was lately.
// Pure: time comes in.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::moe {

class GateCost {
 public:
  // gates: how many are measured; 0 = none ever.
  explicit GateCost(int gates) : gates_(gates) {}

  // A stretch took this, of which so much was to be expected; both nanoseconds.
  void Add(int64_t took, int64_t expected);
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
