#include "scheduler/offload/wave_planner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

// The first copies of a layer take slots of experts that it does not need; only the others may take slots that it has
// used.  Two, as one expert is copied while the other computes.
constexpr int kStreams = 2;

// Above the worth of any expert that the layer has finished.
constexpr int64_t kUsedBefore = std::numeric_limits<int64_t>::max() / 4, kNeededLater = 2 * kUsedBefore;

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
      needed_(cache->shape().num_keys(), 0),
      used_(cache->shape().num_keys(), 0),
      copy_order_(cache->shape().num_keys(), 0) {
  for (const SlotRange& range : ranges_) SY_CHECK_LT(range.begin, range.end);
}

CheapestSlots& WavePlanner::Victims(int layer, size_t most, KeepValue keep) {
  const SlotRange& range = ranges_[layer];
  victims_.Start(most);
  for (int32_t slot = range.begin; slot < range.end; ++slot) {
    const ExpertKey key = cache_->KeyIn(slot);
    if (key == kNoExpert) {
      victims_.Add(slot, CheapestSlots::kEmpty);
    } else if (!needed_[key]) {
      victims_.Add(slot, keep(key));
    }
  }
  victims_.Sort();
  return victims_;
}

// The cheapest slot among those of experts that the layer does not need and of the first num_used of order_; -1 = none.
// Ties: the latest used, so that a layer that needs everything keeps what it had; then the lowest slot.
int32_t WavePlanner::SlotForDemand(size_t num_used, KeepValue keep) const {
  int32_t best = victims_.empty() ? -1 : victims_.slot();
  int64_t best_value = victims_.empty() ? 0 : victims_.worth();
  if (best >= 0 && best_value == CheapestSlots::kEmpty) return best;
  for (size_t i = 0; i < num_used; ++i) {
    const ExpertKey key = order_[i];
    if (!cache_->Holds(key)) continue;
    const int64_t value = keep(key);
    if (best >= 0 && value > best_value) continue;
    best = cache_->SlotOf(key);
    best_value = value;
  }
  return best;
}

void WavePlanner::Use(ExpertKey key, LayerPlan* plan) {
  plan->steps.push_back({PlanStep::kUse, key, cache_->SlotOf(key)});
  if (cache_->state(key) == ExpertState::kPrefetching) cache_->Demand(key);
  if (cache_->state(key) == ExpertState::kDemanded) cache_->Arrive(key);
  SY_CHECK(cache_->state(key) == ExpertState::kResident);
}

// Lists the experts that the layer needs: those held, in the order of computing, and those missing.
void WavePlanner::Sort(const LayerNeed& need, KeepValue keep) {
  const int experts = cache_->shape().num_experts;
  const ExpertKey first = need.layer * experts;
  order_.clear(), coming_.clear(), missing_.clear();
  for (ExpertKey key = first; key < first + experts; ++key) {
    if (need.rows[key - first] == 0) continue;
    needed_[key] = 1;
    (!cache_->Holds(key) ? missing_ : cache_->state(key) == ExpertState::kResident ? order_ : coming_).push_back(key);
  }
  std::stable_sort(order_.begin(), order_.end(), [&](ExpertKey a, ExpertKey b) { return keep(a) < keep(b); });
  std::sort(coming_.begin(), coming_.end(), [&](ExpertKey a, ExpertKey b) { return copy_order_[a] < copy_order_[b]; });
  std::stable_sort(missing_.begin(), missing_.end(),
                   [&](ExpertKey a, ExpertKey b) { return need.rows[a - first] > need.rows[b - first]; });
  order_.insert(order_.end(), coming_.begin(), coming_.end());
}

void WavePlanner::Plan(const LayerNeed& need, KeepValue keep, int64_t wait_worth, LayerPlan* plan) {
  const ExpertKey first = need.layer * cache_->shape().num_experts;
  if (need.parts_left == 0) {
    PlanPart(need, keep, wait_worth, plan);
    std::fill_n(used_.begin() + first, need.rows.size(), uint8_t{0});
    return;
  }
  for (size_t e = 0; e < need.rows.size(); ++e) used_[first + e] |= need.rows[e] > 0;
  const auto keep_longer = [&](ExpertKey key) {
    if (cache_->shape().LayerOf(key) != need.layer) return keep(key);
    if (!need.later.empty() && need.later[key - first] > 0) return kNeededLater;
    return used_[key] != 0 ? kUsedBefore : keep(key);
  };
  PlanPart(need, keep_longer, wait_worth, plan);
}

void WavePlanner::PlanPart(const LayerNeed& need, KeepValue keep, int64_t wait_worth, LayerPlan* plan) {
  Sort(need, keep);
  const size_t num_resident = order_.size() - coming_.size();
  const size_t num_held = order_.size();
  order_.insert(order_.end(), missing_.begin(), missing_.end());
  if (!missing_.empty()) Victims(need.layer, missing_.size(), keep);
  size_t used = 0;
  for (size_t j = 0; j < missing_.size(); ++j) {
    const bool compete = j >= kStreams;
    // The slot of the copy before last is free once that expert has computed.
    while (compete && used < num_held + j - (kStreams - 1)) Use(order_[used++], plan);
    int32_t slot = SlotForDemand(compete ? used : 0, keep);
    if (!compete && slot >= 0 && used < num_resident && cache_->KeyIn(slot) != kNoExpert) {
      const int64_t wait = j == 0 ? wait_worth : 0;
      if (keep(cache_->KeyIn(slot)) - keep(order_[used]) > wait) slot = -1;
    }
    while (slot < 0) {
      Use(order_[used++], plan);
      slot = SlotForDemand(used, keep);
    }
    if (!victims_.empty() && victims_.slot() == slot) victims_.Pop();
    cache_->StartCopy(missing_[j], slot, true);
    plan->steps.push_back({PlanStep::kCopy, missing_[j], slot});
  }
  while (used < order_.size()) Use(order_[used++], plan);
  for (const ExpertKey key : order_) needed_[key] = 0;
}

void WavePlanner::Prefetch(ExpertKey key, int32_t slot, LayerPlan* plan) {
  cache_->StartCopy(key, slot, false);
  copy_order_[key] = ++num_copies_;
  plan->steps.push_back({PlanStep::kPrefetch, key, slot});
}

}  // namespace switchyard::offload
