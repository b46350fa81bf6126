// Slots that follow the plans of a cache which is only simulated, a shadow, and may change whom they follow.
//
// While slots hold what the shadow's hold, its plan is theirs, slot for slot by a pairing.  After a change they differ:
// what the shadow holds and they do not is copied when the shadow uses it, over something that the shadow does not
// hold; what the shadow copies and they hold already costs nothing.  So a change costs at most one copy for each slot
// that differs, spread over the uses, and after that they hold the same (Subramanian, Smaragdakis, Loh: "Adaptive
// caches", 2006: evict what the better policy does not hold).
// Pure, thread-compatible.  Does not do: choosing whom to follow (dueling_policy.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

class ShadowFollower {
 public:
  // Slots hold `initial`, by slot, kNoExpert = empty; and so does the shadow.
  ShadowFollower(const OffloadShape& shape, absl::Span<const ExpertKey> initial);

  // From now on the plans are of a shadow that holds this.  REQUIRES: one entry a slot.
  void Change(absl::Span<const ExpertKey> shadow);
  // The plan for these slots that does what the shadow's next plan does for the shadow's.
  LayerPlan Follow(const LayerPlan& plan);

  // Experts that the shadow of these slots would have and these have not: what a change to it may cost, in copies.
  int NumMissing(absl::Span<const ExpertKey> shadow) const;
  // What the slots hold or wait for.
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
  std::vector<int32_t> pair_;         // [slots] of the shadow: ours
  std::vector<int32_t> shadow_slot_;  // [slots] the inverse
  std::vector<uint8_t> touched_;      // [slots] scratch: the plan has a step there
};

}  // namespace switchyard::offload
