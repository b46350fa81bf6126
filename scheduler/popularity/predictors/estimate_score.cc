#include "scheduler/popularity/predictors/estimate_score.h"

#include <algorithm>
#include <cstdlib>

#include "scheduler/base/check.h"

namespace switchyard::popularity {

int64_t DistanceOf(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  SY_CHECK_EQ(a.size(), b.size());
  const int64_t sum_a = TotalOf(a), sum_b = TotalOf(b);
  if (sum_a == 0 || sum_b == 0) return sum_a == sum_b ? 0 : kWholeDistance;
  // Shares in 2^-40: what rounding takes from each of E experts is far below the result's unit.
  constexpr int kShareBits = 40;
  int64_t twice = 0;
  for (size_t e = 0; e < a.size(); ++e) {
    const auto share_a = static_cast<int64_t>((static_cast<__int128>(a[e]) << kShareBits) / sum_a);
    const auto share_b = static_cast<int64_t>((static_cast<__int128>(b[e]) << kShareBits) / sum_b);
    twice += std::abs(share_a - share_b);
  }
  return twice >> (kShareBits - 20 + 1);
}

void RunningMean::Add(int64_t sample) {
  SY_CHECK(0 <= sample && sample <= kWholeDistance);
  sum_ += sample - sum_ / 16;
  weight_ += kWholeDistance - weight_ / 16;
}

int64_t RunningMean::Mean() const {
  if (weight_ == 0) return kWholeDistance / 2;
  // Rounding on the way down may leave the sum a little above.
  return std::min<int64_t>(kWholeDistance,
                           static_cast<int64_t>(static_cast<__int128>(sum_) * kWholeDistance / weight_));
}

void EstimateScore::Add(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual, int top_k) {
  ++num_batches_;
  accuracy_.Add(SameTopExperts(estimate, actual, 2 * top_k) ? kWholeDistance : 0);
  distance_.Add(DistanceOf(estimate, actual));
}

}  // namespace switchyard::popularity
