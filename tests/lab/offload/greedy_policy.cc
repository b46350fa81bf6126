#include "tests/lab/offload/greedy_policy.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace switchyard {

using offload::ExpertKey;
using offload::kChance;

int32_t CheapestSlot(const offload::ExpertCache& cache, const offload::SlotRange& range, offload::KeepValue keep,
                     int64_t limit) {
  int32_t best = -1;
  for (int32_t slot = range.begin; slot < range.end; ++slot) {
    const ExpertKey key = cache.KeyIn(slot);
    if (key == offload::kNoExpert) return slot;
    const int64_t value = keep(key);
    if (value >= limit) continue;
    best = slot;
    limit = value;
  }
  return best;
}

GreedyPolicy::GreedyPolicy(const offload::OffloadShape& shape, const Options& options,
                           absl::Span<const int64_t> popularity)
    : RulePolicy(shape, options, popularity),
      greedy_name_(absl::StrCat(RulePolicy::name(), "+greedy")),
      ranges_(options.per_layer ? offload::SlotsPerLayer(shape) : offload::SharedSlots(shape)) {}

void GreedyPolicy::Prefetch(absl::Span<const offload::LayerForecast> forecasts, int layer, offload::LayerPlan* plan) {
  if (forecasts.empty() || forecasts[0].ahead != 1) return;
  const offload::OffloadShape& shape = cache_.shape();
  const absl::Span<const int32_t> chance = forecasts[0].chance;
  const int next = (layer + 1) % shape.num_layers;
  const ExpertKey first = next * shape.num_experts;
  std::vector<ExpertKey> likely;
  for (int e = 0; e < shape.num_experts; ++e) {
    if (2 * chance[e] >= kChance) likely.push_back(first + e);
  }
  std::stable_sort(likely.begin(), likely.end(),
                   [&](ExpertKey a, ExpertKey b) { return chance[a - first] > chance[b - first]; });
  const auto keep = [&](ExpertKey key) {
    const bool expected = shape.LayerOf(key) == next && 2 * chance[key - first] >= kChance;
    return expected ? std::numeric_limits<int64_t>::max() : Keep(key);
  };
  for (const ExpertKey key : likely) {
    if (cache_.Holds(key)) continue;
    const int32_t slot = CheapestSlot(cache_, ranges_[next], keep, std::numeric_limits<int64_t>::max());
    if (slot >= 0) planner_.Prefetch(key, slot, plan);
  }
}

offload::LayerPlan GreedyPolicy::OnGate(const offload::LayerNeed& need,
                                        absl::Span<const offload::LayerForecast> forecasts) {
  offload::LayerPlan plan = RulePolicy::OnGate(need, forecasts);
  if (need.parts_left == 0) Prefetch(forecasts, need.layer, &plan);
  return plan;
}

offload::LayerPlan GreedyPolicy::OnPass(absl::Span<const offload::LayerForecast> forecasts, int64_t) {
  offload::LayerPlan plan;
  Prefetch(forecasts, cache_.shape().num_layers - 1, &plan);
  return plan;
}

}  // namespace switchyard
