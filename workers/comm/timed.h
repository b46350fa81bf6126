// Adds the time of a scope to a sum of seconds: what a rank's exchanges took, packing and waiting included.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard {

class Timed {
 public:
  explicit Timed(double* seconds) : seconds_(seconds), begin_(absl::Now()) {}
  ~Timed() { *seconds_ += absl::ToDoubleSeconds(absl::Now() - begin_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double* const seconds_;
  const absl::Time begin_;
};

}  // namespace switchyard
