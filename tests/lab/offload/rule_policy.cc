#include "tests/lab/offload/rule_policy.h"

#include <algorithm>
#include <limits>

#include "scheduler/offload/policies/initial_slots.h"

namespace switchyard {

using offload::ExpertKey;
using offload::kNoExpert;
using offload::LayerPlan;
using offload::OffloadShape;

namespace {

constexpr int kStaticStreams = 2;
constexpr int64_t kMostRows = int64_t{1} << 20;

std::vector<offload::SlotRange> RangesOf(const OffloadShape& shape, const RulePolicy::Options& options) {
  return options.per_layer ? offload::SlotsPerLayer(shape) : offload::SharedSlots(shape);
}

}  // namespace

RulePolicy::RulePolicy(const OffloadShape& shape, const Options& options, absl::Span<const int64_t> popularity)
    : cache_(shape),
      planner_(&cache_, RangesOf(shape, options)),
      options_(options),
      initial_(offload::PopularExperts(shape, RangesOf(shape, options), popularity)),
      last_use_(shape.num_keys(), 0),
      rows_(shape.num_keys(), 0) {
  offload::FillSlots(initial_, &cache_);
  if (options.rule == Rule::kLfu) return;
  const int kept = shape.num_slots == shape.num_keys() ? shape.num_slots : shape.num_slots - kStaticStreams;
  for (int slot = 0; slot < kept; ++slot) {
    if (initial_[slot] != kNoExpert) rows_[initial_[slot]] = 1;
  }
}

void RulePolicy::Count(ExpertKey key, int64_t rows) {
  rows_[key] += rows;
  if (rows_[key] < kMostRows) return;
  rows_[key] = std::min(rows_[key], 2 * kMostRows);
  for (int64_t& each : rows_) each /= 2;
}

LayerPlan RulePolicy::OnGate(const offload::LayerNeed& need, absl::Span<const offload::LayerForecast>) {
  ++num_gates_;
  const ExpertKey first = need.layer * cache_.shape().num_experts;
  for (size_t e = 0; e < need.rows.size(); ++e) {
    if (need.rows[e] == 0) continue;
    last_use_[first + e] = num_gates_;
    if (options_.rule == Rule::kLfu) Count(first + static_cast<ExpertKey>(e), need.rows[e]);
  }
  LayerPlan plan;
  // Rows (at most kMostRows) dominate the time of the last use, which stays below 2^40 gates.
  planner_.Plan(
      need, [this](ExpertKey key) { return (rows_[key] << 40) + last_use_[key]; }, std::numeric_limits<int64_t>::max(),
      &plan);
  return plan;
}

}  // namespace switchyard
