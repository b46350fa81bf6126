// Interface of what decides, after a layer's gate and on every rank alike, where the layer's rows are computed.
//
// Without a balancer rows follow the step's one layout.  It may gather what ranks know, so all ranks call it for the
// same layers in the same order, also with no rows.  Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/route/split.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

// Borrowed from the balancer, until its next Place.
struct LayerPlacement {
  const ExpertLayout* layout = nullptr;          // this layer's
  const placement::SplitTable* split = nullptr;  // of its rows over replicas; null: the layout's own rule
};

// What a balancer learns of a step, the same on every rank.
struct BalancedStep {
  int64_t step = 0;
  bool decides = true;               // false: rows go to their experts' homes, and nothing is gathered
  placement::LayerCosts costs = {};  // the times that decisions compare
};

class LayerBalancer {
 public:
  virtual ~LayerBalancer() = default;
  // Before a step's first gate.  Internal: the step cannot be run like this.
  virtual absl::Status BeginStep(const BalancedStep& step) = 0;
  // By what the layer's gate said of this rank's rows.
  // Errors: the communicator's; Internal where ranks turn out to have decided differently (the group is aborted).
  virtual absl::StatusOr<LayerPlacement> Place(const MoeContext& context, const LayerContext& layer) = 0;
};

}  // namespace switchyard::moe
