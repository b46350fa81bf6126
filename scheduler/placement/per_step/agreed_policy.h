// The modes `agreed` and `auto`: alias placement in the spare slots, rows split by counts, moves that pay.
//
// Residents stay; the other slots begin with replicas spread evenly.  After the gate rows are split by the actual
// counts; weights move (alias_placement.h) only where that is still too uneven and the layer ends sooner with the
// copies (phase_two.h), which run while the experts that are there compute.  Source: scheduler/PAPERS.md, "Beyond
// Lina".
#pragma once

#include "scheduler/placement/per_step/layer_decision.h"

namespace switchyard::placement {

class AgreedPolicy : public PlacementPolicy {
 public:
  explicit AgreedPolicy(PolicyShape shape) : PlacementPolicy(std::move(shape), true) {}

 protected:
  SlotPlan FineTune(const LayerInputs& inputs) override;
  SplitTable Split(const LayerInputs& inputs) override;

 private:
  SplitTable split_;  // that FineTune left
};

}  // namespace switchyard::placement
