// Clocks of a rank's exchanges: the time that passed, waiting included, and the CPU time of a thread.
#pragma once

#include <ctime>

#include "absl/time/time.h"
#include "scheduler/base/clock.h"

namespace switchyard::comm {

// The CPU time of the calling thread, since it began.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Adds the time of a scope to a sum of seconds.
class Timed {
 public:
  explicit Timed(double* seconds) : seconds_(seconds), begin_(MonotonicNow()) {}
  ~Timed() { *seconds_ += absl::ToDoubleSeconds(MonotonicNow() - begin_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double* const seconds_;
  const absl::Time begin_;
};

}  // namespace switchyard::comm
