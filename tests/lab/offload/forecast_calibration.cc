#include "tests/lab/offload/forecast_calibration.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

constexpr int64_t kPriorTokens = 16;    // what the first guess of a place weighs
constexpr int64_t kForgetAt = 1 << 14;  // then the counts are halved: what came lately weighs more
constexpr int64_t kRowsPerChance = (int64_t{1} << 20) / offload::kChance;

}  // namespace

ForecastCalibration::ForecastCalibration(int num_predicted, int num_experts, int top_k)
    : num_experts_(num_experts), top_k_(top_k) {
  for (int j = 0; j < num_predicted; ++j) {
    hits_.push_back(j < top_k ? kPriorTokens * 3 / 4 : kPriorTokens / 8);
    seen_.push_back(kPriorTokens);
  }
}

int32_t ForecastCalibration::PlaceChance(int j) const {
  return static_cast<int32_t>(hits_[j] * offload::kChance / seen_[j]);
}

void ForecastCalibration::Count(absl::Span<const int64_t> hits, int64_t num_tokens) {
  SY_CHECK_EQ(hits.size(), hits_.size());
  for (size_t j = 0; j < hits.size(); ++j) {
    hits_[j] += hits[j];
    seen_[j] += num_tokens;
    for (; seen_[j] > kForgetAt; seen_[j] /= 2) hits_[j] /= 2;
  }
}

void ForecastCalibration::ExpectedRows(absl::Span<const int32_t> named, int64_t num_tokens,
                                       absl::Span<int64_t> rows) const {
  const int places = static_cast<int>(hits_.size());
  int64_t left = int64_t{top_k_} * offload::kChance;
  for (int j = 0; j < places; ++j) left -= PlaceChance(j);
  const int64_t unnamed = std::clamp<int64_t>(left / std::max(1, num_experts_ - places), 0, offload::kChance);
  for (int e = 0; e < num_experts_; ++e) {
    int64_t sum = 0, rest = num_tokens;
    for (int j = 0; j < places; ++j) {
      const int64_t n = named[static_cast<size_t>(j) * num_experts_ + e];
      sum += n * PlaceChance(j);
      rest -= n;
    }
    rows[e] = (sum + rest * unnamed) * kRowsPerChance;
  }
}

}  // namespace switchyard
