#include "scheduler/offload/policies/shadow_follower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::offload {

ShadowFollower::ShadowFollower(const OffloadShape& shape, absl::Span<const ExpertKey> initial)
    : shape_(shape),
      keys_(initial.begin(), initial.end()),
      slot_of_(shape.num_keys(), -1),
      pair_(shape.num_slots),
      shadow_slot_(shape.num_slots),
      touched_(shape.num_slots) {
  SY_CHECK_EQ(keys_.size(), static_cast<size_t>(shape.num_slots));
  for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
    if (keys_[slot] != kNoExpert) slot_of_[keys_[slot]] = slot;
  }
  std::iota(pair_.begin(), pair_.end(), 0);
  std::iota(shadow_slot_.begin(), shadow_slot_.end(), 0);
}

int ShadowFollower::NumMissing(absl::Span<const ExpertKey> shadow) const {
  return static_cast<int>(std::count_if(shadow.begin(), shadow.end(),
                                        [this](ExpertKey key) { return key != kNoExpert && slot_of_[key] < 0; }));
}

void ShadowFollower::Change(absl::Span<const ExpertKey> shadow) {
  SY_CHECK_EQ(shadow.size(), keys_.size());
  std::vector<uint8_t> taken(keys_.size(), 0);
  for (size_t slot = 0; slot < shadow.size(); ++slot) {
    pair_[slot] = shadow[slot] == kNoExpert ? -1 : slot_of_[shadow[slot]];
    if (pair_[slot] >= 0) taken[pair_[slot]] = 1;
  }
  int32_t next = 0;
  for (size_t slot = 0; slot < shadow.size(); ++slot) {
    if (pair_[slot] < 0) {
      while (taken[next]) ++next;
      pair_[slot] = next++;
    }
    shadow_slot_[pair_[slot]] = static_cast<int32_t>(slot);
  }
}

void ShadowFollower::Put(ExpertKey key, int32_t slot) {
  if (keys_[slot] != kNoExpert) slot_of_[keys_[slot]] = -1;
  keys_[slot] = key;
  if (key != kNoExpert) slot_of_[key] = slot;
}

void ShadowFollower::Exchange(int32_t a, int32_t b) {
  std::swap(pair_[a], pair_[b]);
  shadow_slot_[pair_[a]] = a;
  shadow_slot_[pair_[b]] = b;
}

void ShadowFollower::FollowCopy(const PlanStep& step, LayerPlan* plan) {
  if (slot_of_[step.key] >= 0) {
    Exchange(step.slot, shadow_slot_[slot_of_[step.key]]);
    return;
  }
  const int32_t slot = pair_[step.slot];
  Put(step.key, slot);
  touched_[slot] = 1;
  plan->steps.push_back({step.kind, step.key, slot});
}

void ShadowFollower::FollowUse(const PlanStep& step, LayerPlan* early, LayerPlan* plan) {
  const int32_t slot = pair_[step.slot];
  if (keys_[slot] != step.key) {
    // Experts that both hold are paired, so this slot holds none of the shadow's.
    SY_CHECK_EQ(slot_of_[step.key], -1);
    Put(step.key, slot);
    // Early, so that the copy is over sooner.
    (touched_[slot] ? plan : early)->steps.push_back({PlanStep::kCopy, step.key, slot});
  }
  touched_[slot] = 1;
  plan->steps.push_back({PlanStep::kUse, step.key, slot});
}

LayerPlan ShadowFollower::Follow(const LayerPlan& plan) {
  std::fill(touched_.begin(), touched_.end(), 0);
  LayerPlan early, rest;
  for (const PlanStep& step : plan.steps) {
    if (step.kind == PlanStep::kUse) {
      FollowUse(step, &early, &rest);
    } else if (step.kind != PlanStep::kDrop) {
      FollowCopy(step, &rest);
    } else if (const int32_t slot = pair_[step.slot]; keys_[slot] == step.key) {
      Put(kNoExpert, slot);
      touched_[slot] = 1;
      rest.steps.push_back({PlanStep::kDrop, step.key, slot});
    }
  }
  early.steps.insert(early.steps.end(), rest.steps.begin(), rest.steps.end());
  return early;
}

}  // namespace switchyard::offload
