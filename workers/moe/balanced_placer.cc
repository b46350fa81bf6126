#include "workers/moe/balanced_placer.h"

#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement.h"

namespace switchyard {
namespace {

ReplicaMap ReplicasOf(const ExpertLayout& layout) {
  Placement placement{.num_experts = layout.num_experts(), .slots = {}};
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    placement.slots.emplace_back(layout.Residents(rank).begin(), layout.Residents(rank).end());
  }
  return ReplicaMap(placement);
}

}  // namespace

BalancedPlacer::BalancedPlacer(std::vector<ExpertLayout> layouts) : layouts_(std::move(layouts)) {
  for (const ExpertLayout& layout : layouts_) replicas_.push_back(ReplicasOf(layout));
}

absl::StatusOr<LayerPlacement> BalancedPlacer::Place(const GatedRows& rows) {
  SY_CHECK_LT(rows.moe_layer, static_cast<int>(layouts_.size()));
  const ExpertLayout& layout = layouts_[static_cast<size_t>(rows.moe_layer)];
  ASSIGN_OR_RETURN(const RowCounts counts, gather_.Gather(rows, layout.num_experts()));
  split_ = SplitByCounts(counts, replicas_[static_cast<size_t>(rows.moe_layer)]);
  return LayerPlacement{.layout = &layout, .split = &split_};
}

}  // namespace switchyard
