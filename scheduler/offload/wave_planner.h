// Plans the part of a layer that every policy shares: the demand copies, their slots, and the order of computing.
//
// Resident experts compute first, while the others are copied; then those whose prefetch is under way, then the missing
// ones, most rows first.  A missing expert takes an empty slot, else the slot of the expert worth least among those
// that this layer does not need or has used by then.  So a layer over budget runs in waves: two slots take turns, one
// is copied into while the other one computes.  The first missing expert waits for no use, unless every other expert is
// worth that much more.  Where a layer comes in parts, what a later part needs is given up last, and before it what an
// earlier part has used.
// Pure.  Does not decide what to prefetch or what an expert is worth.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "scheduler/offload/expert_cache.h"
#include "scheduler/offload/policies/cache_policy.h"
#include "scheduler/offload/policies/cheapest_slots.h"

namespace switchyard::offload {

// The worth of keeping an expert after this layer, in any scale: the smallest is evicted first.
using KeepValue = absl::FunctionRef<int64_t(ExpertKey)>;

// Slots [begin, end) that a layer may use.
struct SlotRange {
  int32_t begin = 0;
  int32_t end = 0;
};
// Every layer may use all slots; or each layer has its own, the first layers one more where the division has a rest.
std::vector<SlotRange> SharedSlots(const OffloadShape& shape);
std::vector<SlotRange> SlotsPerLayer(const OffloadShape& shape);

class WavePlanner {
 public:
  // `cache` is borrowed.  REQUIRES: each layer has a slot.
  WavePlanner(ExpertCache* cache, std::vector<SlotRange> ranges);

  // Appends the layer's copies and uses; the needed experts are resident afterwards.
  // wait_worth, in keep's scale: what it is worth that the first copy waits for no use of this layer.
  void Plan(const LayerNeed& need, KeepValue keep, int64_t wait_worth, LayerPlan* plan);
  // The cheapest slots, `most` at most, of what the layer being planned does not need.  Valid until the next call of
  // this or of Plan; who takes the first slot pops it.
  CheapestSlots& Victims(int layer, size_t most, KeepValue keep);
  // Appends a prefetch into the slot.
  void Prefetch(ExpertKey key, int32_t slot, LayerPlan* plan);

 private:
  void Sort(const LayerNeed& need, KeepValue keep);
  int32_t SlotForDemand(size_t num_used, KeepValue keep) const;
  void PlanPart(const LayerNeed& need, KeepValue keep, int64_t wait_worth, LayerPlan* plan);
  void Use(ExpertKey key, LayerPlan* plan);

  ExpertCache* cache_;
  std::vector<SlotRange> ranges_;    // [L]
  std::vector<uint8_t> needed_;      // [L * E] by the layer that is planned
  std::vector<uint8_t> used_;        // [L * E] by the parts before of the layer that is planned
  std::vector<int64_t> copy_order_;  // [L * E] prefetches compute in the order in which they were started
  int64_t num_copies_ = 0;
  std::vector<ExpertKey> order_, coming_, missing_;  // scratch
  CheapestSlots victims_;  // scratch: empty slots, and those of experts that the layer does not need
};

}  // namespace switchyard::offload
