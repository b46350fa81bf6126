// The engine's side of expert placement: counts experts' load, measures the times that decisions compare, and says in
// each step's plan whether its layers decide, and these times.  Used on the engine's thread; does nothing for a model
// without MoE layers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/placement/per_step/move_costs.h"
#include "scheduler/placement/per_step/step_trial.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/expert_view.h"
#include "server/balancer/placement_cost_monitor.h"
#include "server/config.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class ExpertLoadBalancing final {
 public:
  // Borrowed; they outlive this.
  ExpertLoadBalancing(const ServerConfig* config, ServerMetrics* metrics) : config_(config), metrics_(metrics) {}

  // A group of these workers forms.
  void Begin(const std::vector<fleet::WorkerInfo>& workers);
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown();
  // A plan is about to be sent: sets whether its layers decide where rows go, and by which costs.
  void PlaceStep(batching::StepPlan* plan, absl::Time now);
  // Counts a finished step's rows.
  void StepDone(const batching::StepResult& result, absl::Time now);
  void Report(int rank, std::shared_ptr<const placement::ExpertReport> report, absl::Time now);

  // The trials of --placement=auto; null with another placement.
  const placement::StepTrial* trial() const;
  // Returns experts' load and placement; null before the first group and for a model without MoE layers.
  std::unique_ptr<const ExpertsCopy> Copy() const;
  void ReportMetrics();

 private:
  // Steps of a group until costs count as measured, and steps between later looks at them.
  static constexpr int64_t kFirstCosts = 4, kCostsApart = 64;

  absl::Status Count(const batching::StepResult& result);
  void LookAtCosts();

  const ServerConfig* const config_;
  ServerMetrics* const metrics_;
  std::optional<popularity::ExpertLoadStats> load_stats_;  // set from the first group on, for models with experts
  int budget_slots_ = 0;                                   // ExpertsCopy::budget_slots
  int num_workers_ = 1;                                    // of the last group
  std::optional<PlacementCostMonitor> meter_;              // set when the first group forms, for models with experts
  placement::MoveCosts costs_;                             // of the next plan; layer_ps is 0 until they are measured
  int64_t steps_since_costs_ = 0;
  placement::StepTrial trial_;  // of --placement=auto
  struct Sent {
    placement::TrialStep step;
    bool decides = false;
    absl::Time at;
  };
  std::map<int64_t, Sent> sent_;  // by step, those under way, of --placement=auto
  absl::Time last_done_ = absl::InfinitePast();
  int64_t reported_deciding_ = 0;        // steps that metrics show
  std::vector<ReceivedReport> reports_;  // [R] of the current group
};

}  // namespace switchyard::server
