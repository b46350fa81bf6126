#include "scheduler/offload/policies/lru_policy.h"

#include <limits>

#include "scheduler/offload/policies/initial_slots.h"

namespace switchyard::offload {

LruPolicy::LruPolicy(const OffloadShape& shape, bool per_layer, absl::Span<const int64_t> popularity)
    : cache_(shape),
      planner_(&cache_, per_layer ? SlotsPerLayer(shape) : SharedSlots(shape)),
      initial_(PopularExperts(shape, per_layer ? SlotsPerLayer(shape) : SharedSlots(shape), popularity)),
      last_use_(shape.num_keys(), 0) {
  FillSlots(initial_, &cache_);
}

LayerPlan LruPolicy::OnGate(const LayerNeed& need, absl::Span<const LayerForecast>) {
  ++num_gates_;
  for (size_t e = 0; e < need.rows.size(); ++e) {
    if (need.rows[e] > 0) last_use_[need.layer * need.rows.size() + e] = num_gates_;
  }
  LayerPlan plan;
  planner_.Plan(
      need, [this](ExpertKey key) { return last_use_[key]; }, std::numeric_limits<int64_t>::max(), &plan);
  return plan;
}

}  // namespace switchyard::offload
