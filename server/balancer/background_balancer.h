// The background load balancer of experts: every --rebalance_steps steps it has a new placement planned, and carries
// the plan out on all workers, migration by migration, while requests run.
//
//   idle ── rebalance_steps done ──► planning (elsewhere) ──► migration after migration: ResidencyEpoch ──► idle
//
// A migration that fails before its commit, a lost group, or a plan that cannot be made ends the plan; committed
// migrations stay, and the next group begins with them.  Answers for another epoch than the migration's are ignored.
// There is one plan at a time, and none if --rebalance_steps is 0.
//
// Costs for the per-step balancer are sent the same way, as a migration without moves: after the first steps have
// measured them, and whenever they have changed, so that every rank adopts them at the same step.  Has no thread, clock
// or socket: the engine loop owns it and passes the time; Host does the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/placement/background/expert_report.h"
#include "scheduler/placement/background/group_placement.h"
#include "scheduler/placement/background/residency.h"
#include "scheduler/placement/background/residency_epoch.h"
#include "scheduler/placement/placement_settings.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/pending_migration.h"
#include "server/balancer/placement_cost_monitor.h"

namespace switchyard::server {

enum class PlanOutcome : uint8_t { kCommitted, kAborted, kNothingToDo };
inline constexpr int kNumPlanOutcomes = 3;
absl::string_view PlanOutcomeName(PlanOutcome outcome);  // "committed" "aborted" "nothing_to_do"

// Where experts are and how the last plan ended.  Cheap to copy.
struct ResidencyView {
  placement::PlacementSettings settings;
  int64_t epoch = 0;   // of the placement in use; 0 = contiguous
  LayerStates layers;  // [L]; empty before the first group
  // The last plan if it was carried out completely.  Null: none was made, or it was aborted.
  std::shared_ptr<const placement::ResidencyPlan> plan;
  std::optional<PlanOutcome> outcome;  // of the last plan
  std::string reason;                  // why it was aborted
  absl::Time ended = absl::InfinitePast();
  int64_t last_copies = 0, last_bytes = 0;  // moved by the last plan
  // Of the plan that is being carried out; 0 without one.
  int migrations = 0, migrations_in_use = 0;
  // Of all plans so far.
  int64_t plans[kNumPlanOutcomes] = {};
  int64_t copies = 0, bytes = 0;
};

// A worker's last report; null: it has not reported since its group formed.
struct ReceivedReport {
  std::shared_ptr<const placement::ExpertReport> report;  // shared with copies for GetExperts
  absl::Time at = absl::InfinitePast();
};

// The input of GetExperts, copied from the engine.  Cheap, as large parts are shared.
struct ExpertsCopy {
  popularity::ExpertLoadStats load_stats;
  ResidencyView placement;
  std::vector<ReceivedReport> reports;  // [R]; empty without a group
  // Experts of all layers for which a worker's --expert_memory has room; 0: for all.
  int budget_slots = 0;
};

class BackgroundBalancer {
 public:
  // Interface through which the balancer's decisions are carried out.
  class Host {
   public:
    virtual ~Host() = default;
    // Planned must be called later with the result.
    virtual void Plan(PlanOrder order) = 0;
    // Sent to every rank of the group.
    virtual void Prepare(const placement::Migration& migration) = 0;
    virtual void Drop(int64_t epoch) = 0;
    virtual void Release(int64_t epoch) = 0;
    // Ends the group, since a rank did not confirm in time that it released its slots.
    virtual void BreakGroup(const std::string& why) = 0;
  };

  struct Shape {
    int layers = 0;   // MoE layers
    int experts = 0;  // E
    int devices = 0;  // R
    bool operator==(const Shape& other) const = default;
  };

  // Time limit for ranks to copy a migration, or to release one.
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  // Moves must pay within this many steps or until the next plan, whichever is later.
  static constexpr int64_t kShortestHorizon = 300;

  BackgroundBalancer(const placement::PlacementSettings& settings, Host* host);

  // Steps of a group until costs count as measured, and steps between later looks at them.
  static constexpr int64_t kFirstCosts = 4, kCostsApart = 64;

  // Returns the placement with which a forming group begins.  REQUIRES: once a group has served, the same shape.
  placement::GroupPlacement Begin(const Shape& shape, const placement::MoveCosts& costs);
  void GroupUp() { up_ = true; }
  void GroupDown(const std::string& reason, absl::Time now);

  // The placement epoch that the next StepPlan must name.
  int64_t placement_epoch() const;
  // A StepPlan with that epoch was sent.
  void StepPlanned(int64_t step, absl::Time now);
  // All ranks have done the step, and load statistics and `meter` have counted it.  A plan copies the counts, no
  // tables.
  void StepDone(int64_t step, const popularity::ExpertLoadStats& load_stats, PlacementCostMonitor* meter,
                absl::Time now);
  void Planned(absl::StatusOr<PendingMigration> plan, absl::Time now);
  // `error`: empty if all arriving experts are in place and correct.
  void Prepared(int rank, int64_t epoch, const std::string& error, absl::Time now);
  void Released(int rank, int64_t epoch, absl::Time now);
  void Tick(absl::Time now);

  const ResidencyView& view() const { return view_; }

 private:
  bool idle() const { return !planning_ && !migration_.has_value(); }
  // Sends the measured costs to all ranks, unless theirs are about the same.
  void ReportCosts(PlacementCostMonitor* meter, absl::Time now);
  void SendMigration(placement::Migration migration, absl::Time now);
  void StartPlan(const popularity::ExpertLoadStats& load_stats, PlacementCostMonitor* meter);
  void StartMigration(absl::Time now);
  void CommitMigration();
  void Handle(placement::EpochDirective directive, absl::Time now);
  void EndPlan(PlanOutcome outcome, const std::string& reason, absl::Time now);
  // Ends a plan before its last migration is in use.
  void AbortPlan(const std::string& why, absl::Time now);

  const placement::PlacementSettings settings_;
  Host* const host_;
  Shape shape_;
  placement::MoveCosts costs_;           // of coming migrations, or of the one under way
  placement::MoveCosts reported_costs_;  // the costs that ranks use
  ResidencyView view_;
  int64_t epoch_ = 0;       // named by steps: the view's, or that of later costs
  int64_t next_epoch_ = 1;  // never used yet, not even by an aborted migration
  int64_t steps_since_plan_ = 0, steps_since_costs_ = 0;
  bool up_ = false;
  bool planning_ = false;
  bool discard_ = false;  // drop the plan that is being made
  // The plan being carried out, shared with the view.  If it is null while a migration is under way, the migration has
  // costs only.
  std::shared_ptr<const placement::ResidencyPlan> plan_;
  std::vector<LayerStates> after_;  // [migrations] of plan_
  size_t migration_idx_ = 0;
  int64_t plan_copies_ = 0, plan_bytes_ = 0;  // of plan_'s migrations in use
  std::optional<placement::ResidencyEpoch> migration_;
  absl::Time release_by_ = absl::InfiniteFuture();
};

}  // namespace switchyard::server
