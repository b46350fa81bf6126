// The per-step balancer: every layer's rows go where its decision says (scheduler/placement/per_step/layer_decision.h),
// and the copies that it orders here are begun.
//
// One layer: gather of counts, of estimates where the mode uses them, and of the last decision's hash
// (decision_gather.h) → Decide, by every rank alike, with no other message → this rank's copies → rows follow the
// decision's split, and wait for late copies where they compute (expert_weight_provider.h).
// In the mode `lina` device 0 alone decides, and sends the decision in one message more; estimates ride in the same
// gather as the counts, not in the all-to-all as the paper's do.
// Refuses `ideal`, which changes answers.
// Thread-compatible: the step's thread.  Source: Lina (ATC '23), section 5.2; scheduler/PAPERS.md, "Beyond Lina".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/placement/route/slot_origins.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/placement/decision_gather.h"
#include "workers/moe/placement/replicated_experts.h"

namespace switchyard::moe {

struct PerStepBalancerOptions {
  placement::PolicyShape shape;  // the same on all ranks
  int rank = 0;                  // of as many as the shape has devices
  // Holds this rank's experts; borrowed.  Null: all are in tables that follow the shape's residents, none of whose
  // slots is empty where steps decide nothing, and nothing moves.
  ReplicatedExperts* experts = nullptr;
};

// Borrowed from the balancer, until its next Place.
struct LayerPlacement {
  const ExpertLayout* layout = nullptr;          // this layer's
  const placement::SplitTable* split = nullptr;  // of its rows over replicas; null: the layout's own rule
  const StandingExperts* standing = nullptr;     // this rank's of the layout; null: as MoeLayerWeights has them
};

// What a balancer learns of a step, the same on every rank.
struct BalancedStep {
  int64_t step = 0;
  bool decides = true;               // false: rows go to their experts' homes, and nothing is gathered
  placement::LayerCosts costs = {};  // the times that decisions compare
};

class PerStepBalancer {
 public:
  // InvalidArgument: ideal; a shape that MakePlacementPolicy refuses.
  static absl::StatusOr<std::unique_ptr<PerStepBalancer>> Create(PerStepBalancerOptions options);

  // The experts that this rank has to hold before the first step, for ReplicatedExperts::Fill.
  std::vector<std::vector<int32_t>> ExpertsHere() const;

  // Before a step's first gate.  Internal: negative costs; a step that decides nothing, in a mode without residents.
  absl::Status BeginStep(const BalancedStep& step);
  // By what the layer's gate said of this rank's rows.  As it may gather what ranks know, all ranks call it for the
  // same layers in the same order, also with no rows. Errors: the communicator's; Internal where ranks turn out to have
  // decided differently (the group is aborted).
  absl::StatusOr<LayerPlacement> Place(const MoeContext& context, const LayerContext& layer);
  // Whether Place looks at what the gate said, in this step.
  bool decides() const { return decides_; }
  // Whether there may be steps that do not: in `auto` alone.
  bool may_decide_nothing() const { return mode_ == placement::PlacementMode::kAuto; }
  // The experts that are at home on this rank, by layer, for ReplicatedExperts::Stand.
  std::vector<std::vector<int32_t>> HomesHere() const;

  const placement::Placement& placement(int layer) const { return placements_[static_cast<size_t>(layer)]; }
  int num_layers() const { return static_cast<int>(placements_.size()); }
  // Why the expert is on that device.
  placement::SlotOrigin OriginOf(int layer, int device, int expert) const { return origins_.Of(layer, device, expert); }

 private:
  PerStepBalancer(PerStepBalancerOptions options, std::unique_ptr<placement::PlacementPolicy> policy,
                  std::vector<ExpertLayout> homes);
  bool central() const { return mode_ == placement::PlacementMode::kLina; }
  absl::Status Decide(const MoeContext& context, const LayerContext& layer, const DecisionGather::Reported& reported);
  absl::Status ReceiveDecision(const MoeContext& context, const LayerContext& layer);
  absl::Status ReportDecision(const MoeContext& context, const LayerContext& layer);
  absl::Status Apply(const placement::SlotPlan& plan, CopyReason reason);

  const placement::PlacementMode mode_;
  const int rank_;
  ReplicatedExperts* const experts_;
  const std::unique_ptr<placement::PlacementPolicy> policy_;  // null: device 0 decides
  DecisionGather gather_;
  int64_t step_ = 0;
  bool decides_ = true;                           // this step
  std::vector<placement::Placement> placements_;  // [L] as decisions have made them
  placement::SlotOrigins origins_;
  std::vector<std::optional<ExpertLayout>> layouts_;  // [L] of them; none: the placement has changed
  const std::vector<ExpertLayout> homes_;             // [L] of residents alone: where undecided rows go
  placement::LayerDecision decision_;                 // the last
  placement::DecisionDigest digest_;
};

}  // namespace switchyard::moe
