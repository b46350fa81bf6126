// The per-step balancer: every layer's rows go where its decision says (scheduler/placement/per_step/layer_decision.h),
// and the copies that it orders here are begun.
//
// One layer: gather of counts, of estimates where the mode uses them, and of the last decision's hash
// (decision_gather.h) → Decide, by every rank alike, with no other message → this rank's copies → rows follow the
// decision's split, and wait for late copies where they compute (expert_weight_provider.h).
// In the mode `central` device 0 alone decides, and sends the decision in one message more; estimates ride in the same
// gather as the counts, not in the all-to-all as the paper's do.
// A migration of the background balancer: Prepare copies; the step that names the epoch commits it on every rank before
// its first layer.  Refuses `oracle`, which would have to know the gate before it runs, and `ideal`, which changes
// answers.  Thread-compatible: the step's thread.  Source: Lina (ATC '23), section 5.2; scheduler/PAPERS.md, "Beyond
// Lina".
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
#include "workers/moe/placement/expert_host.h"
#include "workers/moe/placement/layer_balancer.h"

namespace switchyard::moe {

struct PerStepBalancerOptions {
  placement::PolicyShape shape;  // the same on all ranks, costs and horizon too
  int rank = 0;                  // of as many as the shape has devices
  // Holds this rank's experts; borrowed.  Null: all are in tables that follow the shape's residents, and nothing moves.
  ExpertHost* experts = nullptr;
};

class PerStepBalancer : public LayerBalancer {
 public:
  // InvalidArgument: oracle, ideal; a shape that MakePlacementPolicy refuses.
  static absl::StatusOr<std::unique_ptr<PerStepBalancer>> Create(PerStepBalancerOptions options);

  // The experts that this rank has to hold before the first step, for ExpertHost::Fill.
  std::vector<std::vector<int32_t>> ExpertsHere() const;

  // A step of the group begins: commits the migration that has this placement epoch.  Internal: neither the epoch in
  // use nor one that is ready; a step that decides nothing, in a mode without residents.
  absl::Status BeginStep(const BalancedStep& step) override;
  absl::StatusOr<LayerPlacement> Place(const MoeContext& context, const LayerContext& layer) override;

  // A migration of all ranks' moves: starts what has to be copied here.  Errors: as PlacementPolicy::CheckMigration and
  // ExpertHost::Prepare; FailedPrecondition: an epoch that is not above the one in use.
  absl::Status Prepare(int64_t epoch, const placement::MoveCosts& costs, placement::ResidencyMigration migration);
  // Whether what was prepared is there.  FailedPrecondition: nothing was; DataLoss and others: ExpertHost::Ready.
  absl::StatusOr<bool> Ready();
  // Gives up what was prepared for that epoch; nothing if it was not, or is committed.
  absl::Status Drop(int64_t epoch);
  // Releases what departed with that epoch.  FailedPrecondition: it is not the one in use.
  absl::Status Release(int64_t epoch);

  int64_t epoch() const { return epoch_; }
  // Migrations that steps of this group have committed, and how long the last commit took.
  int64_t num_commits() const { return num_commits_; }
  double commit_seconds() const { return commit_seconds_; }
  const placement::Placement& placement(int layer) const { return placements_[static_cast<size_t>(layer)]; }
  int num_layers() const { return static_cast<int>(placements_.size()); }
  // Why the expert is on that device.
  placement::SlotOrigin OriginOf(int layer, int device, int expert) const { return origins_.Of(layer, device, expert); }

 private:
  struct Prepared {
    int64_t epoch = 0;
    placement::MoveCosts costs;
    placement::ResidencyMigration migration;
  };

  PerStepBalancer(PerStepBalancerOptions options, std::unique_ptr<placement::PlacementPolicy> policy);
  bool central() const { return mode_ == placement::PlacementMode::kCentral; }
  absl::Status Decide(const MoeContext& context, const LayerContext& layer, const DecisionGather::Reported& reported);
  absl::Status ReceiveDecision(const MoeContext& context, const LayerContext& layer);
  absl::Status ReportDecision(const MoeContext& context, const LayerContext& layer);
  absl::Status Apply(const placement::SlotPlan& plan, CopyReason reason);
  absl::Status Commit();
  // Where a step's rows go that decides nothing.
  const ExpertLayout& HomesOf(int layer);
  // The experts that these moves bring to this rank or take from it.
  std::vector<ExpertHost::Expert> Here(const std::vector<placement::ResidencyMove>& moves) const;

  const placement::PlacementMode mode_;
  const int rank_;
  ExpertHost* const experts_;
  const std::unique_ptr<placement::PlacementPolicy> policy_;  // null: device 0 decides
  DecisionGather gather_;
  int64_t epoch_, step_ = 0;
  bool decides_ = true;                           // this step
  std::vector<placement::Placement> placements_;  // [L] as decisions have made them
  placement::SlotOrigins origins_;
  std::vector<std::optional<ExpertLayout>> layouts_;  // [L] of them; none: the placement has changed
  std::vector<std::optional<ExpertLayout>> homes_;    // [L] of residents alone; none: not asked for in this epoch
  placement::LayerDecision decision_;                 // the last
  placement::DecisionDigest digest_;
  std::optional<Prepared> prepared_;
  int64_t num_commits_ = 0;
  double commit_seconds_ = 0;  // of the last
};

}  // namespace switchyard::moe
