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
      table_{},
      age_(shape.num_keys(), 16),
      short_(shape.num_keys(), 0),
      long_(shape.num_keys(), 0),
      mean_(shape.num_keys(), 0),
      runs_(shape.num_layers, kProfileRuns),
      next_(shape.num_keys(), 0) {
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

void NeedHistory::Observe(const LayerNeed& need) {
  const ExpertKey first = need.layer * num_experts_;
  int32_t& runs = runs_[need.layer];
  runs = std::min(runs + 1, kMeanRuns);
  for (int e = 0; e < num_experts_; ++e) {
    const ExpertKey key = first + e;
    const bool needed = need.rows[e] > 0;
    const int32_t now = needed ? kChance : 0;
    table_[CellOf(key)].Add(now, mean_[key]);
    mean_[key] += (now - mean_[key]) / runs;
    age_[key] = needed ? 0 : age_[key] + 1;
    short_[key] += (now - short_[key]) / (1 << kShortBits);
    long_[key] += (now - long_[key]) / (1 << kLongBits);
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
