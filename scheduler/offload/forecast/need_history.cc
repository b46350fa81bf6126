#include "scheduler/offload/forecast/need_history.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

constexpr int kShortBits = 2;      // decay 1 / 4 a pass
constexpr int kLongBits = 6;       // 1 / 64
constexpr int32_t kGuessRuns = 8;  // what a cell's first guess weighs
constexpr int32_t kMeanRuns = 1024;
constexpr int32_t kProfileRuns = 3;  // what the profile's guess of the mean weighs

}  // namespace

NeedHistory::NeedHistory(const OffloadShape& shape, absl::Span<const int64_t> popularity)
    : num_experts_(shape.num_experts),
      token_uses_(shape.token_uses),
      table_{},
      age_(shape.num_keys(), 16),
      short_(shape.num_keys(), 0),
      long_(shape.num_keys(), 0),
      mean_(shape.num_keys(), 0),
      runs_(shape.num_layers, kProfileRuns),
      next_(shape.num_keys(), 0) {
  recent_.fill(1);
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const auto rows = popularity.subspan(static_cast<size_t>(layer) * num_experts_, num_experts_);
    int64_t most = 1;
    for (const int64_t r : rows) most = std::max(most, r);
    int shift = 0;  // so that the product below fits
    while ((most >> shift) >= int64_t{1} << 32) ++shift;
    for (int e = 0; e < num_experts_; ++e) {
      const int32_t chance = static_cast<int32_t>((rows[e] >> shift) * (kChance / 2) / (most >> shift));
      const ExpertKey key = layer * num_experts_ + e;
      short_[key] = long_[key] = mean_[key] = next_[key] = chance;
    }
  }
}

void NeedHistory::Expect(ExpertKey key) {
  const ExpertKey first = key / num_experts_ * num_experts_;
  int64_t sum = 0;
  int num_needed = 0;
  for (ExpertKey other = first; other < first + num_experts_; ++other) {
    sum += mean_[other];
    num_needed += mean_[other] > 0;
  }
  const auto chance = static_cast<int32_t>(sum / std::max(1, num_needed));
  for (std::vector<int32_t>* known : {&short_, &long_, &mean_, &next_}) (*known)[key] = std::max((*known)[key], chance);
}

int NeedHistory::CellOf(ExpertKey key) const {
  static constexpr int kAgeLevel[] = {0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7};
  return (kAgeLevel[std::min(age_[key], 16)] * kChanceLevels + LevelOfChance(short_[key])) * kChanceLevels +
         LevelOfChance(long_[key]);
}

int32_t NeedHistory::TokensOf(int64_t rows) const {
  if (token_uses_ == 0) return 1;
  constexpr int64_t kMost = 1 << 14;
  return static_cast<int32_t>(std::clamp<int64_t>(rows / token_uses_, 1, kMost));
}

int32_t NeedHistory::OfAny(int32_t chance, int32_t tokens) {
  int64_t none = kChance, power = kChance - chance;
  for (int32_t left = tokens; left > 0; left /= 2) {
    if (left % 2 == 1) none = none * power / kChance;
    power = power * power / kChance;
  }
  return static_cast<int32_t>(kChance - none);
}

void NeedHistory::Observe(const LayerNeed& need) {
  const ExpertKey first = need.layer * num_experts_;
  int64_t rows = 0;
  for (const int32_t each : need.rows) rows += each;
  const int32_t tokens = TokensOf(rows);
  layer_ = need.layer;
  tokens_ = tokens;
  if (need.layer == 0) {
    recent_[static_cast<size_t>(num_passes_++ % kRecentPasses)] = tokens;
    least_tokens_ = *std::min_element(recent_.begin(), recent_.end());
  }
  int32_t& runs = runs_[need.layer];
  runs = std::min(runs + tokens, std::max(kMeanRuns, tokens));
  const int64_t lately = OfAny(kChance >> kShortBits, tokens), for_long = OfAny(kChance >> kLongBits, tokens);
  for (int e = 0; e < num_experts_; ++e) {
    const ExpertKey key = first + e;
    const auto now = static_cast<int32_t>(int64_t{kChance} * std::min(need.rows[e], tokens) / tokens);
    if (tokens == 1) table_[CellOf(key)].Add(now, mean_[key]);
    mean_[key] += static_cast<int32_t>(int64_t{now - mean_[key]} * tokens / runs);
    age_[key] = 4 * int64_t{now} >= kChance ? 0 : age_[key] + 1;
    short_[key] += static_cast<int32_t>((now - short_[key]) * lately / kChance);
    long_[key] += static_cast<int32_t>((now - long_[key]) * for_long / kChance);
  }
  for (ExpertKey key = first; key < first + num_experts_; ++key) {
    const LearnedChance& cell = table_[CellOf(key)];
    // With few counts the chance is between the two frequencies.
    const int64_t guess = (int64_t{short_[key]} + long_[key]) / 2 - mean_[key];
    const int64_t more = (cell.more + kGuessRuns * guess) / (cell.seen + kGuessRuns);
    next_[key] = static_cast<int32_t>(std::clamp<int64_t>(mean_[key] + more, 0, kChance));
  }
}

}  // namespace switchyard::offload
