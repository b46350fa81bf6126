// The background balancer of expert placement: every so many steps it looks whether experts had better live elsewhere,
// has a plan made, and carries it out on all workers, migration by migration, while requests run.
//
//   idle ── rebalance_steps done ──► planning (elsewhere) ──► migration after migration: ResidencyEpoch ──► idle
//
// A migration that fails before its commit, a lost group, or a plan that cannot be made ends the plan; what was
// committed stays, and the next group begins with it.  Answers of another epoch than the migration's change nothing.
// One plan at a time; none where --rebalance_steps is 0.
//
// Costs for the per-step balancer go the same way, as a migration without moves: after the first steps have measured
// them, and whenever they have changed, so that every rank adopts them at the same step.  No thread, clock or socket:
// the engine loop owns it and passes the time; Host does the rest.
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

// Where experts are and how the last plan went; a copy that costs nothing.
struct ResidencyView {
  placement::PlacementSettings settings;
  int64_t epoch = 0;   // of the placement in use; 0 = contiguous
  LayerStates layers;  // [L]; empty before the first group
  // The last plan, if it is fully in force: what Explain explains.  Null: none was made, or it was aborted.
  std::shared_ptr<const placement::ResidencyPlan> plan;
  std::optional<PlanOutcome> outcome;  // of the last plan
  std::string reason;                  // why it was aborted
  absl::Time ended = absl::InfinitePast();
  // That the last plan moved.  Under an expert budget a commit moves no bytes: cache policies copy when rows come.
  int64_t last_copies = 0, last_bytes = 0;
  // Of a worker's expert budget: experts of all layers that it has room for; 0: all have.
  int budget_slots = 0;
  // Of a plan that is being carried out; none: 0.
  int migrations = 0, migrations_in_use = 0;
  // Of all plans so far.
  int64_t plans[kNumPlanOutcomes] = {};
  int64_t copies = 0, bytes = 0;
};

// A worker's last word; null: it has not said anything since its group formed.
struct ReceivedReport {
  std::shared_ptr<const placement::ExpertReport> report;  // shared with whoever asked for a copy
  absl::Time at = absl::InfinitePast();
};

// What GetExperts shows, copied from the engine: cheap, as what is large is shared.
struct ExpertsCopy {
  popularity::ExpertLoadStats load_stats;
  ResidencyView placement;
  std::vector<ReceivedReport> reports;  // [R]; empty: no group stands
};

class BackgroundBalancer {
 public:
  // What carries out what is decided here.
  class Host {
   public:
    virtual ~Host() = default;
    // To be answered with Planned, later.
    virtual void Plan(PlanOrder order) = 0;
    // To every rank of the group.
    virtual void Prepare(const placement::Migration& migration) = 0;
    virtual void Drop(int64_t epoch) = 0;
    virtual void Release(int64_t epoch) = 0;
    // The group cannot go on: a rank does not say that it released what it had to.
    virtual void BreakGroup(const std::string& why) = 0;
  };

  struct Shape {
    int layers = 0;   // MoE layers
    int experts = 0;  // E
    int devices = 0;  // R
    // Of a worker's --expert_budget, in experts of all layers; 0: all of a worker's experts have room.
    int budget_slots = 0;
    bool IsOfModel(const Shape& other) const {
      return layers == other.layers && experts == other.experts && devices == other.devices;
    }
  };

  // How long ranks may take to copy a migration, or to release one.
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  // Moves have to pay within as many steps, or until the next plan, whichever is later.
  static constexpr int64_t kShortestHorizon = 300;

  BackgroundBalancer(const placement::PlacementSettings& settings, Host* host);

  // After so many steps of a group costs count as measured; so often they are looked at again.
  static constexpr int64_t kFirstCosts = 4, kCostsApart = 64;

  // A group of that shape forms: what it begins with.  If its budget differs from the last group's, known residents are
  // forgotten, as they may not fit; nothing else may differ once a group stood.
  placement::GroupPlacement Begin(const Shape& shape, const placement::MoveCosts& costs);
  void GroupUp() { up_ = true; }
  void GroupDown(const std::string& reason, absl::Time now);

  // What the next StepPlan has to say.
  int64_t placement_epoch() const;
  // A StepPlan that says it was sent.
  void StepPlanned(int64_t step, absl::Time now);
  // All ranks have done that step; load statistics and meter have it.  A plan copies their counts, no tables.
  void StepDone(int64_t step, const popularity::ExpertLoadStats& load_stats, PlacementCostMonitor* meter,
                absl::Time now);
  void Planned(absl::StatusOr<PendingMigration> plan, absl::Time now);
  // error: empty if all that arrives is there and right.
  void Prepared(int rank, int64_t epoch, const std::string& error, absl::Time now);
  void Released(int rank, int64_t epoch, absl::Time now);
  void Tick(absl::Time now);

  const ResidencyView& view() const { return view_; }

 private:
  // Neighbouring experts on a device, as many in memory as fit.
  std::vector<placement::LayerResidency> FirstResidency() const;
  bool idle() const { return !planning_ && !migration_.has_value(); }
  // All ranks get the costs as measured, if those that they have are not about the same.
  void ReportCosts(PlacementCostMonitor* meter, absl::Time now);
  void SendMigration(placement::Migration migration, absl::Time now);
  void StartPlan(const popularity::ExpertLoadStats& load_stats, PlacementCostMonitor* meter);
  void StartMigration(absl::Time now);
  void CommitMigration();
  void Handle(placement::EpochDirective directive, absl::Time now);
  void EndPlan(PlanOutcome outcome, const std::string& reason, absl::Time now);
  // Of a plan that ends before its last migration is in force.
  void AbortPlan(const std::string& why, absl::Time now);

  const placement::PlacementSettings settings_;
  Host* const host_;
  Shape shape_;
  placement::ResidencyLimits limits_;
  placement::MoveCosts costs_;           // of the migrations to come, or of that on its way
  placement::MoveCosts reported_costs_;  // that ranks have
  ResidencyView view_;
  int64_t epoch_ = 0;       // that steps name: the view's, or that of costs since
  int64_t next_epoch_ = 1;  // never used before, not even by an aborted migration
  int64_t steps_since_plan_ = 0, steps_since_costs_ = 0;
  bool up_ = false;
  bool planning_ = false;
  bool discard_ = false;  // the plan that is being made
  // Being carried out; shared with the view.  Null while a migration is under way: that one is of costs alone.
  std::shared_ptr<const placement::ResidencyPlan> plan_;
  std::vector<LayerStates> after_;  // its migrations
  size_t migration_idx_ = 0;
  int64_t plan_copies_ = 0, plan_bytes_ = 0;  // of its migrations in use
  std::optional<placement::ResidencyEpoch> migration_;
  absl::Time release_by_ = absl::InfiniteFuture();
};

}  // namespace switchyard::server
