#include "scheduler/offload/forecast_calibration.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

constexpr int64_t kPriorTokens = 16;    // what the first guess of a place weighs
constexpr int64_t kForgetAt = 1 << 14;  // then the counts are halved: what came lately weighs more
constexpr int kBits = 30;

// base^n in fixed point of kBits, rounded down.
int64_t Power(int64_t base, int64_t n) {
  int64_t power = int64_t{1} << kBits;
  for (; n > 0 && power > 0; n >>= 1) {
    if (n & 1) power = power * base >> kBits;
    base = base * base >> kBits;
  }
  return power;
}

}  // namespace

ForecastCalibration::ForecastCalibration(int num_predicted, int num_experts, int top_k)
    : num_experts_(num_experts), top_k_(top_k) {
  for (int j = 0; j < num_predicted; ++j) {
    hits_.push_back(j < top_k ? kPriorTokens * 3 / 4 : kPriorTokens / 8);
    seen_.push_back(kPriorTokens);
  }
}

int32_t ForecastCalibration::PlaceChance(int j) const { return static_cast<int32_t>(hits_[j] * kChance / seen_[j]); }

void ForecastCalibration::Count(absl::Span<const int64_t> hits, int64_t num_tokens) {
  SY_CHECK_EQ(hits.size(), hits_.size());
  for (size_t j = 0; j < hits.size(); ++j) {
    hits_[j] += hits[j];
    seen_[j] += num_tokens;
    for (; seen_[j] > kForgetAt; seen_[j] /= 2) hits_[j] /= 2;
  }
}

void ForecastCalibration::Chances(absl::Span<const int32_t> named, int64_t num_tokens,
                                  absl::Span<int32_t> chance) const {
  const int places = static_cast<int>(hits_.size());
  std::vector<int64_t> missed(places);
  int64_t left = int64_t{top_k_} * kChance;
  for (int j = 0; j < places; ++j) {
    const int32_t right = PlaceChance(j);
    left -= right;
    missed[j] = int64_t{kChance - right} << (kBits - 16);
  }
  const int others = std::max(1, num_experts_ - places);
  const int64_t unnamed = std::clamp<int64_t>(left / others, 0, kChance);
  for (int e = 0; e < num_experts_; ++e) {
    int64_t none = int64_t{1} << kBits;
    int64_t rest = num_tokens;
    for (int j = 0; j < places; ++j) {
      const int64_t n = named[static_cast<size_t>(j) * num_experts_ + e];
      none = none * Power(missed[j], n) >> kBits;
      rest -= n;
    }
    none = none * Power((kChance - unnamed) << (kBits - 16), rest) >> kBits;
    chance[e] = kChance - static_cast<int32_t>(none >> (kBits - 16));
  }
}

}  // namespace switchyard
