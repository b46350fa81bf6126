// Lina's inference scheduling: the modes `lina`, `no_estimate` and `no_finetune`.
//
// Phase 1 places a coming layer's experts by its estimate (paper_allocation.h) in all slots, and plans how many tokens
// each replica takes.  Phase 2 compares the sets of the 2k most popular experts, estimated and actual; where they
// differ it places anew by the actual counts, and everybody waits for the copies.  no_estimate has phase 2 alone,
// always placing anew; no_finetune has phase 1 alone.  A layer without an estimate stays as it is.  Unlike the paper's,
// devices are renumbered so that the fewest experts move (matching.h). Source: Lina (ATC '23), section 5.2;
// scheduler/PAPERS.md, items 6, 7.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/placement/per_step/layer_decision.h"

namespace switchyard::placement {

class PaperPolicy : public PlacementPolicy {
 public:
  explicit PaperPolicy(PolicyShape shape);

 protected:
  SlotPlan FineTune(const LayerInputs& inputs) override;
  SplitTable Split(const LayerInputs& inputs) override;
  SlotPlan Prepare(const LayerEstimate& estimate) override;

 private:
  SlotPlan PlaceBy(int layer, absl::Span<const int64_t> rows);

  std::vector<std::vector<int64_t>> planned_;  // [L][P] rows of each replica; empty = equal parts
};

}  // namespace switchyard::placement
