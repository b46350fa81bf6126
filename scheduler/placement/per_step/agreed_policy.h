// The modes `agreed` and `auto` (and `oracle`): alias placement in the spare slots, rows split by counts, moves that
// pay.
//
// Residents stay; the other slots begin with replicas spread evenly.  An estimate fills those of a coming layer
// (alias_placement.h) if what is there now would leave the busiest too busy and the copies cost less (phase_two.h).
// After the gate rows are split by the actual counts; weights move then only where that is still too uneven and the
// layer ends sooner with the copies, which run while the experts that are there compute.  Source: scheduler/PAPERS.md,
// "Beyond Lina".
#pragma once

#include "scheduler/placement/lina/alias_placement.h"
#include "scheduler/placement/per_step/layer_decision.h"

namespace switchyard::placement {

class AgreedPolicy : public PlacementPolicy {
 public:
  explicit AgreedPolicy(PolicyShape shape) : PlacementPolicy(std::move(shape), true) {}

 protected:
  SlotPlan FineTune(const LayerInputs& inputs) override;
  SplitTable Split(const LayerInputs& inputs) override;
  SlotPlan Prepare(const LayerEstimate& estimate, int layers_ahead) override;

 private:
  // `question` has everything but the candidate and its delay.
  SlotPlan Try(const LayerEstimate& estimate, const FillTarget& target, int layers_ahead, MoveQuestion question) const;

  SplitTable split_;  // that FineTune left
};

}  // namespace switchyard::placement
