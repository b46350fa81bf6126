#include "scheduler/jobs/window_order.h"

#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"

namespace switchyard::jobs {

WindowOrder::WindowOrder(uint64_t seed, int64_t num_windows) : seed_(seed), num_windows_(num_windows) {
  SY_CHECK_LE(int64_t{1}, num_windows);
  while ((int64_t{1} << (2 * half_bits_)) < num_windows) ++half_bits_;
}

int64_t WindowOrder::WindowOf(int64_t sample) const {
  constexpr int kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const uint64_t key = SplitMix(seed_ ^ SplitMix(static_cast<uint64_t>(EpochOf(sample))));
  auto place = static_cast<uint64_t>(sample % num_windows_);
  do {
    uint64_t left = place >> half_bits_, right = place & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (SplitMix(key + round * kSplitMixStep + SplitMix(right)) & mask);
      left = right;
      right = next;
    }
    place = (left << half_bits_) | right;
  } while (place >= static_cast<uint64_t>(num_windows_));
  return static_cast<int64_t>(place);
}

}  // namespace switchyard::jobs
