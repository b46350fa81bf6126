// Slots that follow the plans of a simulated cache, the shadow, and may change to another shadow.
//
// While the slots hold what the shadow's hold, its plan is theirs, slot for slot by a pairing.  After a change they
// differ: what the shadow alone holds is copied when it uses it, over something that it does not hold; what it copies
// and the slots hold already costs nothing.  So a change costs at most one copy for each slot that differs, spread over
// the uses (Subramanian, Smaragdakis, Loh: "Adaptive caches", 2006).
// Pure, thread-compatible.  Does not choose whom to follow (dueling_policy.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

class ShadowFollower {
 public:
  // The slots and the shadow's hold `initial`, by slot, kNoExpert = empty.
  ShadowFollower(const OffloadShape& shape, absl::Span<const ExpertKey> initial);

  // From now on follows a shadow that holds this.  REQUIRES: one entry a slot.
  void Change(absl::Span<const ExpertKey> shadow);
  // The plan for these slots that does what the shadow's next plan does for the shadow's.
  LayerPlan Follow(const LayerPlan& plan);

  // Experts that this shadow holds and the slots do not: what a change to it may cost, in copies.
  int NumMissing(absl::Span<const ExpertKey> shadow) const;
  // The experts that the slots hold or wait for.
  absl::Span<const ExpertKey> keys() const { return keys_; }

 private:
  void FollowCopy(const PlanStep& step, LayerPlan* plan);
  void FollowUse(const PlanStep& step, LayerPlan* early, LayerPlan* plan);
  void Put(ExpertKey key, int32_t slot);
  // The shadow's slots a and b exchange the slots that they are paired with.
  void Exchange(int32_t a, int32_t b);

  OffloadShape shape_;
  std::vector<ExpertKey> keys_;       // [slots]
  std::vector<int32_t> slot_of_;      // [L * E], -1 = not held
  std::vector<int32_t> pair_;         // [slots of the shadow] ours
  std::vector<int32_t> shadow_slot_;  // [slots] the inverse
  std::vector<uint8_t> touched_;      // [slots] scratch: whether the plan has a step there
};

}  // namespace switchyard::offload
