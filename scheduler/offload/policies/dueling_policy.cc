#include "scheduler/offload/policies/dueling_policy.h"

#include <algorithm>
#include <utility>

namespace switchyard::offload {
namespace {

constexpr int64_t kPassesOfChance = 256;

}  // namespace

DuelingPolicy::DuelingPolicy(const OffloadShape& shape, const CopyCost& cost,
                             std::vector<std::unique_ptr<CachePolicy>> candidates, size_t first)
    : num_layers_(shape.num_layers),
      copy_ticks_(cost.copy_ticks),
      chunk_ticks_(std::max<int64_t>(1, cost.copy_ticks / cost.chunks_per_copy)),
      least_lead_(-shape.num_slots * cost.copy_ticks),
      leader_(first),
      initial_(candidates[first]->InitialSlots()),
      follower_(shape, initial_) {
  for (std::unique_ptr<CachePolicy>& policy : candidates) {
    CopyTimeline clock(shape, cost);
    clock.Preload(policy->InitialSlots());
    shadows_.push_back({.policy = std::move(policy), .clock = std::move(clock)});
  }
}

void DuelingPolicy::Learn(const LayerNeed& need) {
  for (Shadow& shadow : shadows_) shadow.policy->Learn(need);
}

void DuelingPolicy::Host(ExpertKey key, bool here) {
  for (Shadow& shadow : shadows_) shadow.policy->Host(key, here);
}

void DuelingPolicy::Prefer(ExpertKey key, bool in_memory) {
  for (Shadow& shadow : shadows_) shadow.policy->Prefer(key, in_memory);
}

LayerPlan DuelingPolicy::OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) {
  MaybeChange();
  LayerPlan followed;
  std::vector<int64_t> ticks;
  for (Shadow& shadow : shadows_) {
    LayerPlan plan = shadow.policy->OnGate(need, forecasts);
    ticks.push_back(shadow.clock.Run(plan, need));
    if (ticks.size() == leader_ + 1) followed = follower_.Follow(plan);
  }
  Count(need, ticks);
  return followed;
}

void DuelingPolicy::Count(const LayerNeed& need, absl::Span<const int64_t> ticks) {
  const bool ends_pass = need.layer == num_layers_ - 1 && need.parts_left == 0;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    Shadow& shadow = shadows_[i];
    shadow.lead = std::max(least_lead_, shadow.lead + ticks[leader_] - ticks[i]);
    shadow.gain += ticks[leader_] - ticks[i];
    if (!ends_pass) continue;
    const int64_t chunks = shadow.gain / chunk_ticks_;
    shadow.squares += chunks * chunks - shadow.squares / kPassesOfChance;
    shadow.gain = 0;
  }
}

LayerPlan DuelingPolicy::OnPass(absl::Span<const LayerForecast> forecasts, int64_t ticks) {
  LayerPlan followed;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    const LayerPlan plan = shadows_[i].policy->OnPass(forecasts, ticks);
    shadows_[i].clock.Run(plan, {.rows = {}, .compute_ticks = ticks});
    if (i == leader_) followed = follower_.Follow(plan);
  }
  return followed;
}

// Called before a gate, when the shadows hold what their next plans begin with.
void DuelingPolicy::MaybeChange() {
  size_t best = leader_;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    if (shadows_[i].lead > shadows_[best].lead) best = i;
  }
  if (best == leader_) return;
  const absl::Span<const ExpertKey> holds = shadows_[best].clock.holds();
  const int64_t lead = shadows_[best].lead;
  const int64_t over = std::min<int64_t>(1 << 30, (lead - follower_.NumMissing(holds) * copy_ticks_) / chunk_ticks_);
  if (over <= 0 || over * over <= shadows_[best].squares) return;
  follower_.Change(holds);
  for (Shadow& shadow : shadows_) shadow.lead = std::max(least_lead_, shadow.lead - lead);
  leader_ = best;
  ++num_changes_;
}

}  // namespace switchyard::offload
