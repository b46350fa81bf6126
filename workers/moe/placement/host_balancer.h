// LayerBalancer of workers that compute from weights which their machine has once
// (scheduler/placement/route/host_split.h): each rank decides about its own rows from their counts alone, so that
// nothing is gathered.
//
// Thread-compatible.  On the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/route/host_split.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/placement/layer_balancer.h"

namespace switchyard::moe {

// Every rank has all experts whose owners are of its host, by rising number.
ExpertLayout LayoutOfHosts(const placement::HostGroups& groups);

class HostBalancer final : public LayerBalancer {
 public:
  // many_rows: as HostSplit's.
  HostBalancer(int rank, placement::HostGroups groups, int32_t many_rows);

  // Internal: rank_rows is of another number of ranks, or has a negative number.
  absl::Status BeginStep(const BalancedStep& step) override;
  bool is_optional() const override { return true; }
  // Internal: an expert id outside [-1, E).
  absl::StatusOr<LayerPlacement> Place(const MoeContext& context, const LayerContext& layer) override;

  const ExpertLayout& layout() const { return layout_; }

 private:
  const ExpertLayout layout_;
  placement::HostSplit split_;
  placement::SplitTable table_;  // of the last layer
  std::vector<int32_t> counts_;  // [E] of it
};

}  // namespace switchyard::moe
