// The engine's side of the background load balancer: counts how experts are used, has the balancer decide where they
// had better live, and carries that out on the group's workers.  Called on the engine's thread; without MoE layers it
// does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
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
  // All borrowed; they outlive this.  `inbox`: where plans come that were made.
  ExpertLoadBalancing(const ServerConfig* config, WorkerGroup* workers, EngineInbox* inbox, ServerMetrics* metrics);

  // A group forms of these workers: where its experts are when it begins.
  placement::GroupPlacement Begin(const std::vector<fleet::WorkerInfo>& workers);
  void GroupUp(int world, const fleet::WorkerInfo& first);
  void GroupDown(const std::string& reason, absl::Time now);
  // A step is done: counts its rows, and looks whether experts had better live elsewhere.
  void StepDone(const batching::StepResult& result);
  void Report(int rank, std::shared_ptr<const placement::ExpertReport> report, absl::Time now);

  BackgroundBalancer& residency() { return residency_; }
  // How experts are used and where they are; null before the first group stood and for a model without MoE layers.
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
  std::optional<popularity::ExpertLoadStats> load_stats_;  // from the first group on, of a model with experts
  std::optional<PlacementCostMonitor> meter_;              // from the first forming on, of a model with experts
  BackgroundBalancer residency_;
  std::vector<ReceivedReport> reports_;     // [R] of the group that stands
  ResidencyView reported_;                  // as the metrics have it
  std::unique_ptr<PlannerThread> planner_;  // null before the first plan; goes first, as it posts
};

}  // namespace switchyard::server
