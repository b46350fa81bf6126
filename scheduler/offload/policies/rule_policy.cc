#include "scheduler/offload/policies/rule_policy.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

constexpr int kStaticStreams = 2;
constexpr int64_t kMostRows = int64_t{1} << 20;

std::vector<SlotRange> RangesOf(const OffloadShape& shape, const RulePolicy::Options& options) {
  return options.per_layer ? SlotsPerLayer(shape) : SharedSlots(shape);
}

}  // namespace

std::vector<ExpertKey> PopularExperts(const OffloadShape& shape, const std::vector<SlotRange>& ranges,
                                      absl::Span<const int64_t> popularity) {
  SY_CHECK_EQ(popularity.size(), static_cast<size_t>(shape.num_keys()));
  std::vector<ExpertKey> keys(shape.num_keys());
  std::iota(keys.begin(), keys.end(), 0);
  std::stable_sort(keys.begin(), keys.end(), [&](ExpertKey a, ExpertKey b) { return popularity[a] > popularity[b]; });
  std::vector<ExpertKey> slots(shape.num_slots, kNoExpert);
  std::vector<int32_t> next(shape.num_slots + 1, 0);  // by where a range begins
  for (const SlotRange& range : ranges) next[range.begin] = range.begin;
  for (const ExpertKey key : keys) {
    if (popularity[key] == 0) break;
    const SlotRange& range = ranges[shape.LayerOf(key)];
    if (next[range.begin] < range.end) slots[next[range.begin]++] = key;
  }
  return slots;
}

void FillSlots(absl::Span<const ExpertKey> initial, ExpertCache* cache) {
  for (size_t slot = 0; slot < initial.size(); ++slot) {
    if (initial[slot] == kNoExpert) continue;
    cache->StartCopy(initial[slot], static_cast<int32_t>(slot), true);
    cache->Arrive(initial[slot]);
  }
}

RulePolicy::RulePolicy(const OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity)
    : cache_(shape),
      planner_(&cache_, RangesOf(shape, options)),
      options_(options),
      initial_(PopularExperts(shape, RangesOf(shape, options), popularity)),
      last_use_(shape.num_keys(), 0),
      rows_(shape.num_keys(), 0),
      gone_(shape.num_keys(), 0) {
  static constexpr const char* kRuleNames[] = {"lru", "lfu", "static"};
  name_ = absl::StrCat(kRuleNames[static_cast<int>(options.rule)],
                       options.per_layer || options.rule == Rule::kStatic ? "" : " shared");
  FillSlots(initial_, &cache_);
  if (options.rule == Rule::kStatic) {
    const int kept = shape.num_slots == shape.num_keys() ? shape.num_slots : shape.num_slots - kStaticStreams;
    for (int slot = 0; slot < kept; ++slot) {
      if (initial_[slot] != kNoExpert) rows_[initial_[slot]] = 1;
    }
  }
}

void RulePolicy::Prefer(ExpertKey key, bool in_memory) {
  if (options_.rule == Rule::kStatic) rows_[key] = in_memory ? 1 : 0;
}

int64_t RulePolicy::Keep(ExpertKey key) const {
  if (gone_[key] != 0) return -1;
  // Rows (at most kMostRows) dominate the time of the last use, which stays below 2^40 gates.
  if (options_.rule == Rule::kLru) return last_use_[key];
  return (rows_[key] << 40) + last_use_[key];
}

void RulePolicy::Count(ExpertKey key, int64_t rows) {
  rows_[key] += rows;
  if (rows_[key] < kMostRows) return;
  rows_[key] = std::min(rows_[key], 2 * kMostRows);
  for (int64_t& each : rows_) each /= 2;
}

LayerPlan RulePolicy::OnGate(const LayerNeed& need, absl::Span<const LayerForecast>) {
  ++num_gates_;
  const ExpertKey first = need.layer * cache_.shape().num_experts;
  for (size_t e = 0; e < need.rows.size(); ++e) {
    if (need.rows[e] == 0) continue;
    last_use_[first + e] = num_gates_;
    if (options_.rule == Rule::kLfu) Count(first + static_cast<ExpertKey>(e), need.rows[e]);
  }
  LayerPlan plan;
  planner_.Plan(
      need, [this](ExpertKey key) { return Keep(key); }, std::numeric_limits<int64_t>::max(), &plan);
  return plan;
}

}  // namespace switchyard::offload
