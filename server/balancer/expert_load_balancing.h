// The engine's side of the background load balancer: counts experts' load, and carries out the balancer's plans on the
// group's workers.  Used on the engine's thread; does nothing for a model without MoE layers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/placement/per_step/step_trial.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/background_balancer.h"
#include "server/balancer/pending_migration.h"
#include "server/balancer/placement_cost_monitor.h"
#include "server/config.h"
#include "server/engine/engine_inbox.h"
#include "server/fleet/worker_group.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class ExpertLoadBalancing final : private BackgroundBalancer::Host {
 public:
  // All borrowed; they outlive this.  Finished plans are posted to `inbox`.
  ExpertLoadBalancing(const ServerConfig* config, WorkerGroup* workers, EngineInbox* inbox, ServerMetrics* metrics);

  // Returns the placement with which the group of these workers begins.
  placement::GroupPlacement Begin(const std::vector<fleet::WorkerInfo>& workers);
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown(const std::string& reason, absl::Time now);
  // A plan is about to be sent: sets its placement epoch, and whether its layers decide where rows go.
  void PlaceStep(batching::StepPlan* plan, absl::Time now);
  // Counts a finished step's rows, and starts a plan when one is due.
  void StepDone(const batching::StepResult& result, absl::Time now);
  void Report(int rank, std::shared_ptr<const placement::ExpertReport> report, absl::Time now);

  BackgroundBalancer& residency() { return residency_; }
  // The trials of --placement=auto; null with another placement.
  const placement::StepTrial* trial() const;
  // Returns experts' load and placement; null before the first group and for a model without MoE layers.
  std::unique_ptr<const ExpertsCopy> Copy() const;
  void ReportMetrics();

 private:
  void Plan(PlanOrder order) override;
  void Prepare(const placement::Migration& migration) override;
  void Drop(int64_t epoch) override;
  void Release(int64_t epoch) override;
  void BreakGroup(const std::string& why) override;

  absl::Status Count(const batching::StepResult& result);

  const ServerConfig* const config_;
  WorkerGroup* const workers_;
  EngineInbox* const inbox_;
  ServerMetrics* const metrics_;
  std::optional<popularity::ExpertLoadStats> load_stats_;  // set from the first group on, for models with experts
  int budget_slots_ = 0;                                   // ExpertsCopy::budget_slots
  std::optional<PlacementCostMonitor> meter_;              // set when the first group forms, for models with experts
  BackgroundBalancer residency_;
  placement::StepTrial trial_;  // of --placement=auto
  struct Sent {
    placement::TrialStep step;
    bool decides = false;
    absl::Time at;
  };
  std::map<int64_t, Sent> sent_;  // by step, those under way, of --placement=auto
  absl::Time last_done_ = absl::InfinitePast();
  int64_t reported_deciding_ = 0;           // steps that metrics show
  std::vector<ReceivedReport> reports_;     // [R] of the current group
  ResidencyView reported_;                  // the view that metrics show
  std::unique_ptr<PlannerThread> planner_;  // null before the first plan; last, since it posts until it is destroyed
};

}  // namespace switchyard::server
