// The engine's side of expert placement: counts experts' load, and measures the times that decisions compare and that
// each step's plan says.  Used on the engine's thread; does nothing for a model without MoE layers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/placement/expert_cost.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/expert_view.h"
#include "server/balancer/placement_cost_monitor.h"
#include "server/config.h"

namespace switchyard::server {

class ExpertLoadBalancing final {
 public:
  // Borrowed; it outlives this.
  explicit ExpertLoadBalancing(const ServerConfig* config) : config_(config) {}

  // A group of these workers forms.
  void Begin(const std::vector<fleet::WorkerInfo>& workers);
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown();
  // Of the next plan.
  const placement::LayerCosts& costs() const { return costs_; }
  // One expert's times on a rank; none before they were measured.
  const placement::ExpertCost& expert_cost() const { return expert_cost_; }
  // Counts a finished step's rows; measures its times if they were not cut, since exchanges hide behind products else.
  void StepDone(const batching::StepResult& result, bool whole);
  void Report(int rank, std::shared_ptr<const placement::ExpertReport> report, absl::Time now);

  // Returns experts' load and placement; null before the first group and for a model without MoE layers.
  std::unique_ptr<const ExpertsCopy> Copy() const;

 private:
  // Steps until costs count as measured, and steps between later looks at them.
  static constexpr int64_t kFirstCosts = 4, kCostsApart = 64;

  absl::Status Count(const batching::StepResult& result);
  void LookAtCosts();

  const ServerConfig* const config_;
  std::optional<popularity::ExpertLoadStats> load_stats_;  // set from the first group on, for models with experts
  int budget_slots_ = 0;                                   // ExpertsCopy::budget_slots
  int num_workers_ = 1;                                    // of the last group
  bool in_place_ = false;                                  // likewise, ExpertsCopy::in_place
  std::optional<PlacementCostMonitor> meter_;              // set when the first group forms, for models with experts
  placement::LayerCosts costs_;
  placement::ExpertCost expert_cost_;
  bool measured_ = false;  // costs_, by steps
  int64_t steps_since_costs_ = 0;
  std::vector<ReceivedReport> reports_;  // [R] of the current group
};

}  // namespace switchyard::server
