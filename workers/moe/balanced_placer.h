// Rows over the replicas that an epoch fixed, by the actual counts: no prediction, nothing moves (the mode
// `static+spare`).
//
// After each gate ranks tell each other their counts; the busiest rank then has as few rows as the replicas allow
// (scheduler/placement/split.h).  A row's bits do not depend on where it is computed, so neither does any answer.
// On the CPU (HostExchange).  Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/replica_map.h"
#include "scheduler/placement/split.h"
#include "workers/moe/expert_layout.h"
#include "workers/moe/layer_placer.h"
#include "workers/moe/row_count_gather.h"

namespace switchyard {

class BalancedPlacer : public LayerPlacer {
 public:
  // The layout of every MoE layer.  REQUIRES: of the group's ranks.
  explicit BalancedPlacer(std::vector<ExpertLayout> layouts);

  absl::StatusOr<LayerPlacement> Place(const GatedRows& rows) override;

 private:
  const std::vector<ExpertLayout> layouts_;  // [MoE layers]
  std::vector<ReplicaMap> replicas_;         // [MoE layers]
  RowCountGather gather_;
  SplitTable split_;
};

}  // namespace switchyard
