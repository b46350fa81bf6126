#include "scheduler/placement/lina/paper_policy.h"

#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/placement/lina/matching.h"
#include "scheduler/placement/lina/paper_allocation.h"

namespace switchyard::placement {

PaperPolicy::PaperPolicy(PolicyShape shape) : PlacementPolicy(std::move(shape), false) {
  planned_.resize(this->shape().residents.size());
}

SlotPlan PaperPolicy::FineTune(const LayerInputs& inputs) {
  SlotPlan stays{.layer = inputs.layer};
  if (shape().mode == PlacementMode::kNoFinetune) return stays;
  const std::vector<int64_t> rows = inputs.counts.OfExperts();
  if (shape().mode == PlacementMode::kLina) {
    const popularity::Popularity& estimate = EstimateOf(inputs.layer);
    if (estimate.empty() || popularity::SameTopExperts(estimate, rows, 2 * shape().top_k)) return stays;
  }
  return PlaceBy(inputs.layer, rows);
}

SplitTable PaperPolicy::Split(const LayerInputs& inputs) {
  const ReplicaIndex& replicas = table(inputs.layer).replicas();
  const std::vector<int64_t>& planned = planned_[inputs.layer];
  return SplitAsPlanned(inputs.counts, replicas,
                        planned.empty() ? std::vector<int64_t>(replicas.num_replicas(), 0) : planned);
}

SlotPlan PaperPolicy::Prepare(const LayerEstimate& estimate) {
  if (shape().mode == PlacementMode::kNoEstimate) return {.layer = estimate.layer};
  return PlaceBy(estimate.layer, estimate.popularity);
}

SlotPlan PaperPolicy::PlaceBy(int layer, absl::Span<const int64_t> rows) {
  const Placement& present = table(layer).placement();
  const absl::StatusOr<Placement> allocated =
      AllocateAsPaper(rows, present.num_devices(), static_cast<int>(present.slots[0].size()));
  SY_CHECK_OK(allocated.status());
  const Placement next = MatchDevices(present, *allocated);
  planned_[layer] = PlannedRows(ReplicaIndex(next), rows);
  return {.layer = layer, .changes = ChangesBetween(present, next)};
}

}  // namespace switchyard::placement
