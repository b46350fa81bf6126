// The one source of chance of a simulation: equal seeds give equal runs.  Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace switchyard::simulation {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = (a * 0x9e3779b97f4a7c15ull) ^ (b + 0x632be59bd9b4e019ull);
  z = (z ^ (z >> 29)) * 0xff51afd7ed558ccdull;
  return z ^ (z >> 32);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed, 0x5331)) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    return Mix(state_, state_ >> 31);
  }
  // [0, n).  REQUIRES: n >= 1.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // [low, high].
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return absl::Nanoseconds(Between(absl::ToInt64Nanoseconds(low), absl::ToInt64Nanoseconds(high)));
  }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  // Most are near `low`, few near `high`: what is usually short and sometimes long.
  absl::Duration Skewed(absl::Duration low, absl::Duration high) {
    const double share = static_cast<double>(Next() >> 11) * 0x1p-53;
    return low + (high - low) * (share * share * share);
  }
  template <class List>
  auto& Pick(List& list) {
    return list[static_cast<size_t>(Below(static_cast<int64_t>(list.size())))];
  }

 private:
  uint64_t state_;
};

}  // namespace switchyard::simulation
