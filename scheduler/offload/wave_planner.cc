#include "scheduler/offload/wave_planner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

// Copies of one layer that take their slots from what it does not need before its own used ones compete: one is copied
// while the other computes.
constexpr int kStreams = 2;

}  // namespace

std::vector<SlotRange> SharedSlots(const OffloadShape& shape) {
  return std::vector<SlotRange>(shape.num_layers, {0, shape.num_slots});
}

std::vector<SlotRange> SlotsPerLayer(const OffloadShape& shape) {
  std::vector<SlotRange> ranges;
  int32_t begin = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const int32_t slots = shape.num_slots / shape.num_layers + (layer < shape.num_slots % shape.num_layers ? 1 : 0);
    ranges.push_back({begin, begin + slots});
    begin += slots;
  }
  return ranges;
}

WavePlanner::WavePlanner(ExpertCache* cache, std::vector<SlotRange> ranges)
    : cache_(cache),
      ranges_(std::move(ranges)),
      role_(cache->shape().num_keys(), Role::kOther),
      use_order_(cache->shape().num_keys(), 0),
      copy_order_(cache->shape().num_keys(), 0) {
  for (const SlotRange& range : ranges_) SY_CHECK_LT(range.begin, range.end);
}

// -1 = none.  Ties: the latest used, so that a layer that needs everything keeps what it had; then the lowest slot.
int32_t WavePlanner::SlotForDemand(const SlotRange& range, bool used_too, KeepValue keep) const {
  int32_t best = cache_->EmptySlot(range.begin, range.end);
  if (best >= 0) return best;
  int64_t best_value = 0;
  int32_t best_order = 0;
  for (int32_t slot = range.begin; slot < range.end; ++slot) {
    const ExpertKey key = cache_->KeyIn(slot);
    if (role_[key] == Role::kToUse || (role_[key] == Role::kUsed && !used_too)) continue;
    const int64_t value = keep(key);
    const int32_t order = role_[key] == Role::kUsed ? use_order_[key] : -1;
    if (best >= 0 && (value > best_value || (value == best_value && order <= best_order))) continue;
    best = slot;
    best_value = value;
    best_order = order;
  }
  return best;
}

void WavePlanner::Use(ExpertKey key, LayerPlan* plan) {
  plan->steps.push_back({PlanStep::kUse, key, cache_->SlotOf(key)});
  if (cache_->state(key) == ExpertState::kPrefetching) cache_->Demand(key);
  if (cache_->state(key) == ExpertState::kDemanded) cache_->Arrive(key);
  cache_->Pin(key);
  cache_->Unpin(key);
  role_[key] = Role::kUsed;
  use_order_[key] = ++num_uses_;
}

// Whom the layer needs: held, in the order of computing, and missing.
void WavePlanner::Sort(const LayerNeed& need, KeepValue keep) {
  const int experts = cache_->shape().num_experts;
  const ExpertKey first = need.layer * experts;
  order_.clear(), coming_.clear(), missing_.clear();
  for (ExpertKey key = first; key < first + experts; ++key) {
    if (need.rows[key - first] == 0) continue;
    role_[key] = Role::kToUse;
    (!cache_->Holds(key) ? missing_ : cache_->state(key) == ExpertState::kResident ? order_ : coming_).push_back(key);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](ExpertKey a, ExpertKey b) { return keep(a) < keep(b); });
  std::sort(coming_.begin(), coming_.end(), [&](ExpertKey a, ExpertKey b) { return copy_order_[a] < copy_order_[b]; });
  std::stable_sort(missing_.begin(), missing_.end(),
                   [&](ExpertKey a, ExpertKey b) { return need.rows[a - first] > need.rows[b - first]; });
  order_.insert(order_.end(), coming_.begin(), coming_.end());
}

void WavePlanner::Plan(const LayerNeed& need, KeepValue keep, int64_t wait_worth, LayerPlan* plan) {
  const SlotRange& range = ranges_[need.layer];
  Sort(need, keep);
  const size_t num_resident = order_.size() - coming_.size();
  const size_t num_held = order_.size();
  order_.insert(order_.end(), missing_.begin(), missing_.end());
  num_uses_ = 0;
  size_t used = 0;
  for (size_t j = 0; j < missing_.size(); ++j) {
    const bool compete = j >= kStreams;
    // The slot of the copy before last is free to take when that one has computed.
    while (compete && used < num_held + j - (kStreams - 1)) Use(order_[used++], plan);
    int32_t slot = SlotForDemand(range, compete, keep);
    if (!compete && slot >= 0 && used < num_resident && cache_->KeyIn(slot) != kNoExpert) {
      const int64_t wait = j == 0 ? wait_worth : 0;
      if (keep(cache_->KeyIn(slot)) - keep(order_[used]) > wait) slot = -1;
    }
    while (slot < 0) {
      Use(order_[used++], plan);
      slot = SlotForDemand(range, true, keep);
    }
    cache_->StartCopy(missing_[j], slot, true);
    plan->steps.push_back({PlanStep::kCopy, missing_[j], slot});
  }
  while (used < order_.size()) Use(order_[used++], plan);
  for (const ExpertKey key : order_) role_[key] = Role::kOther;
}

int32_t WavePlanner::CheapestSlot(int layer, KeepValue keep, int64_t limit) const {
  const SlotRange& range = ranges_[layer];
  int32_t best = cache_->EmptySlot(range.begin, range.end);
  if (best >= 0) return best;
  for (int32_t slot = range.begin; slot < range.end; ++slot) {
    const int64_t value = keep(cache_->KeyIn(slot));
    if (value >= limit) continue;
    best = slot;
    limit = value;
  }
  return best;
}

void WavePlanner::Prefetch(ExpertKey key, int32_t slot, LayerPlan* plan) {
  cache_->StartCopy(key, slot, false);
  copy_order_[key] = ++num_copies_;
  plan->steps.push_back({PlanStep::kPrefetch, key, slot});
}

}  // namespace switchyard
