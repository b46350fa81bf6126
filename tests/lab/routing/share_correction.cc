#include "tests/lab/routing/share_correction.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

constexpr int64_t kWhole = int64_t{1} << 30;
// So many rows that chance makes about as much of the error as bias does.
constexpr int64_t kNoisyRows = 1024;

}  // namespace

void ShareCorrection::Apply(absl::Span<int64_t> estimate) const {
  SY_CHECK_EQ(estimate.size(), error_.size());
  const int64_t total = popularity::TotalOf(estimate);
  if (total == 0) return;
  popularity::Popularity share = popularity::ScaledTo(estimate, kWhole);
  for (size_t e = 0; e < share.size(); ++e) share[e] = std::max<int64_t>(0, share[e] + error_[e]);
  const popularity::Popularity corrected = popularity::ScaledTo(share, total);
  std::copy(corrected.begin(), corrected.end(), estimate.begin());
}

void ShareCorrection::Update(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual, int64_t num_rows) {
  SY_CHECK_EQ(estimate.size(), error_.size());
  SY_CHECK_EQ(actual.size(), error_.size());
  if (popularity::TotalOf(estimate) == 0 || popularity::TotalOf(actual) == 0) return;
  const popularity::Popularity reported = popularity::ScaledTo(estimate, kWhole),
                               came = popularity::ScaledTo(actual, kWhole);
  // Below 2^31 * 2^42: within 128 bits.
  for (size_t e = 0; e < error_.size(); ++e) {
    const __int128 missed = came[e] - reported[e] - error_[e];
    error_[e] += static_cast<int64_t>(missed * num_rows / (__int128{2} * (num_rows + kNoisyRows)));
  }
}

}  // namespace switchyard
