#include "scheduler/offload/forecast/need_rate.h"

#include <algorithm>

namespace switchyard::offload {
namespace {

constexpr int32_t kStep = kChance / 32;
constexpr int64_t kMostTokens = 1 << 14;

}  // namespace

NeedRate::NeedRate(const OffloadShape& shape, absl::Span<const int64_t> popularity)
    : num_experts_(shape.num_experts), token_uses_(shape.token_uses), rate_(shape.num_keys(), 0) {
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const auto rows = popularity.subspan(static_cast<size_t>(layer) * num_experts_, num_experts_);
    double sum = 0;
    for (const int64_t each : rows) sum += static_cast<double>(each);
    if (sum <= 0) continue;
    const double of_all = static_cast<double>(kChance) * std::max(1, token_uses_) / sum;
    for (int e = 0; e < num_experts_; ++e) {
      rate_[layer * num_experts_ + e] =
          static_cast<int32_t>(std::min<double>(kChance, static_cast<double>(rows[e]) * of_all));
    }
  }
}

int32_t NeedRate::OfAny(int32_t chance, int32_t tokens) {
  int64_t none = kChance, power = kChance - chance;
  for (int32_t left = tokens; left > 0; left /= 2) {
    if (left % 2 == 1) none = none * power / kChance;
    power = power * power / kChance;
  }
  return static_cast<int32_t>(kChance - none);
}

void NeedRate::Observe(const LayerNeed& need) {
  int64_t rows = 0;
  for (const int32_t each : need.rows) rows += each;
  tokens_ = token_uses_ == 0 ? 1 : static_cast<int32_t>(std::clamp<int64_t>(rows / token_uses_, 1, kMostTokens));
  const int64_t step = OfAny(kStep, tokens_);
  for (int e = 0; e < num_experts_; ++e) {
    int32_t& rate = rate_[need.layer * num_experts_ + e];
    const int64_t now = int64_t{kChance} * std::min(need.rows[e], tokens_) / tokens_;
    rate += static_cast<int32_t>((now - rate) * step / kChance);
  }
}

}  // namespace switchyard::offload
