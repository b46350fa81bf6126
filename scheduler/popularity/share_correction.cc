#include "scheduler/popularity/share_correction.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

constexpr int64_t kWhole = int64_t{1} << 30;

}  // namespace

void ShareCorrection::Apply(absl::Span<int64_t> estimate) const {
  SY_CHECK_EQ(estimate.size(), error_.size());
  const int64_t total = TotalOf(estimate);
  if (total == 0) return;
  Popularity share = ScaledTo(estimate, kWhole);
  for (size_t e = 0; e < share.size(); ++e) share[e] = std::max<int64_t>(0, share[e] + error_[e]);
  const Popularity corrected = ScaledTo(share, total);
  std::copy(corrected.begin(), corrected.end(), estimate.begin());
}

void ShareCorrection::Update(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual) {
  SY_CHECK_EQ(estimate.size(), error_.size());
  SY_CHECK_EQ(actual.size(), error_.size());
  if (TotalOf(estimate) == 0 || TotalOf(actual) == 0) return;
  const Popularity told = ScaledTo(estimate, kWhole), came = ScaledTo(actual, kWhole);
  for (size_t e = 0; e < error_.size(); ++e) error_[e] = (error_[e] + came[e] - told[e]) / 2;
}

}  // namespace switchyard
