#include "workers/train/data/mixture_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "scheduler/base/check.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::train {
namespace {

// The weights' parts of kMixtureSequences in whole numbers, each at least 1.
std::vector<int64_t> QuotasOf(absl::Span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> quotas;
  std::vector<std::pair<double, size_t>> remainders;  // negative, so that the greatest is first
  int64_t left = jobs::kMixtureSequences;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double part = weights[i] / sum * jobs::kMixtureSequences;
    quotas.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::floor(part))));
    remainders.emplace_back(static_cast<double>(quotas.back()) - part, i);
    left -= quotas.back();
  }
  std::sort(remainders.begin(), remainders.end());
  // (Roundings may have given one too many to datasets at the least part.)
  for (size_t i = 0; left > 0; ++i, --left) ++quotas[remainders[i % remainders.size()].second];
  for (; left < 0; ++left) --*std::max_element(quotas.begin(), quotas.end());
  return quotas;
}

}  // namespace

MixtureOrder::MixtureOrder(absl::Span<const double> weights) : quotas_(QuotasOf(weights)) {
  period_.reserve(jobs::kMixtureSequences);
  for (size_t d = 0; d < quotas_.size(); ++d) {
    for (int64_t j = 0; j < quotas_[d]; ++j) period_.push_back({static_cast<int32_t>(d), j});
  }
  SY_CHECK_EQ(static_cast<int64_t>(period_.size()), jobs::kMixtureSequences);
  // By (j + 1/2) / quota, in whole numbers.
  std::sort(period_.begin(), period_.end(), [this](const Sample& a, const Sample& b) {
    const int64_t at = (2 * a.index + 1) * quotas_[b.dataset], other = (2 * b.index + 1) * quotas_[a.dataset];
    return at != other ? at < other : a.dataset < b.dataset;
  });
}

MixtureOrder::Sample MixtureOrder::Of(int64_t sample) const {
  const Sample& place = period_[static_cast<size_t>(sample % jobs::kMixtureSequences)];
  return {place.dataset, sample / jobs::kMixtureSequences * quotas_[place.dataset] + place.index};
}

}  // namespace switchyard::train
