#include "tests/lab/offload/belady_policy.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/offload/policies/initial_slots.h"

namespace switchyard {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

// The slot of the range that is worth least, empty ones first; -1 = none below `limit`.
int32_t CheapestSlot(const offload::ExpertCache& cache, const offload::SlotRange& range, offload::KeepValue keep,
                     int64_t limit) {
  int32_t best = -1;
  for (int32_t slot = range.begin; slot < range.end; ++slot) {
    const offload::ExpertKey key = cache.KeyIn(slot);
    if (key == offload::kNoExpert) return slot;
    const int64_t value = keep(key);
    if (value >= limit) continue;
    best = slot;
    limit = value;
  }
  return best;
}

}  // namespace

BeladyPolicy::BeladyPolicy(const offload::OffloadShape& shape, const offload::CopyCost& cost, const Options& options,
                           const NeedSequence* sequence, absl::Span<const int64_t> popularity)
    : options_(options),
      cost_(cost),
      name_(absl::StrCat("belady", options.prefetch ? "+perfect" : "", options.per_layer ? "" : " shared",
                         options.wait ? " wait" : "")),
      ranges_(options.per_layer ? offload::SlotsPerLayer(shape) : offload::SharedSlots(shape)),
      cache_(shape),
      planner_(&cache_, ranges_),
      clock_(shape, cost),
      sequence_(sequence),
      initial_(offload::PopularExperts(shape, ranges_, popularity)),
      uses_(shape.num_keys()),
      next_(shape.num_keys(), 0) {
  offload::FillSlots(initial_, &cache_);
  clock_.Preload(initial_);
  for (size_t gate = 0; gate < sequence->size(); ++gate) {
    for (const offload::ExpertKey key : (*sequence)[gate]) uses_[key].push_back(static_cast<int32_t>(gate));
  }
  for (std::vector<int32_t>& uses : uses_) uses.push_back(kNever);
}

// The link has time until the next gate for what this layer does not demand.
void BeladyPolicy::PrefetchAhead(const offload::LayerNeed& need, offload::LayerPlan* plan) {
  const offload::CopyTimeline::Outlook outlook = clock_.Try(*plan, need);
  int64_t idle = outlook.ticks - outlook.link_ticks;
  const int64_t num_gates = static_cast<int64_t>(sequence_->size());
  const int layers = cache_.shape().num_layers;
  for (int32_t gate = gate_ + 1; idle > 0 && gate < num_gates && gate < gate_ + 4 * layers; ++gate) {
    for (const offload::ExpertKey key : (*sequence_)[gate]) {
      if (cache_.Holds(key)) continue;
      if (idle <= 0 || cache_.shape().LayerOf(key) == need.layer) return;
      const int32_t slot = CheapestSlot(
          cache_, ranges_[cache_.shape().LayerOf(key)],
          [this](offload::ExpertKey k) { return -int64_t{uses_[k][next_[k]]}; }, -int64_t{gate});
      if (slot < 0) return;
      planner_.Prefetch(key, slot, plan);
      idle -= cost_.copy_ticks;
    }
  }
}

offload::LayerPlan BeladyPolicy::OnGate(const offload::LayerNeed& need, absl::Span<const offload::LayerForecast>) {
  SY_CHECK_EQ(need.parts_left, 0);
  SY_CHECK_LT(gate_, static_cast<int64_t>(sequence_->size()));
  for (const offload::ExpertKey key : (*sequence_)[gate_]) ++next_[key];
  offload::LayerPlan plan;
  for (offload::ExpertKey key = 0; options_.prefetch && key < cache_.shape().num_keys(); ++key) {
    if (cache_.state(key) == offload::ExpertState::kPrefetching && clock_.Arrived(key)) cache_.Arrive(key);
  }
  planner_.Plan(
      need, [this](offload::ExpertKey key) { return -int64_t{uses_[key][next_[key]]}; },
      options_.wait ? 0 : std::numeric_limits<int64_t>::max(), &plan);
  if (options_.prefetch) {
    PrefetchAhead(need, &plan);
    clock_.Run(plan, need);
  }
  ++gate_;
  return plan;
}

}  // namespace switchyard
