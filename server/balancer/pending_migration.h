// A plan of the background balancer, ready to be carried out: every migration's placement is computed and checked on
// the planner's thread, so that the engine's thread only hands them on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/placement/background/residency.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/placement_cost_monitor.h"

namespace switchyard::server {

// [L] Each layer's residents; states share the layers that do not change between them.
using LayerStates = std::vector<std::shared_ptr<const placement::Placement>>;

std::vector<placement::Placement> CopyLayers(const LayerStates& layers);

struct PendingMigration {
  placement::ResidencyPlan plan;
  std::vector<LayerStates> after;  // [migrations] where experts are after each migration
};

// The input of a plan: copies of counts, and shared tables.
struct PlanOrder {
  popularity::ExpertLoadStats load_stats;
  PlacementCostMonitor meter;
  LayerStates present;  // [L]
  int layer_slots = 0;  // ResidencyProblem::layer_slots
  int64_t horizon_steps = 0;
  int64_t next_epoch = 1;
};

placement::ResidencyProblem ProblemOf(const PlanOrder& order);
// What makes plans: PlanResidency, unless a benchmark's server sets another before it starts.
using Planner = absl::StatusOr<placement::ResidencyPlan> (*)(const placement::ResidencyProblem&);
void SetPlanner(Planner planner);
// Takes as long as PlanResidency.  Errors are PlanResidency's and MakePendingMigration's.
absl::StatusOr<PendingMigration> MakePlan(const PlanOrder& order);

// InvalidArgument: a migration cannot be applied after those before it (ApplyMigration).
absl::StatusOr<PendingMigration> MakePendingMigration(placement::ResidencyPlan plan, const LayerStates& present,
                                                      int layer_slots);

// A thread that makes plans, which may take seconds: one at a time, at a lower priority than serving.
class PlannerThread {
 public:
  // `done` is called on the thread once for each Plan, unless this is destroyed first.
  explicit PlannerThread(absl::AnyInvocable<void(absl::StatusOr<PendingMigration>)> done);
  // Waits for the plan that is being made.
  ~PlannerThread();

  // Never blocks.  REQUIRES: the plan before is done.
  void Plan(PlanOrder order);

 private:
  void Run();

  absl::AnyInvocable<void(absl::StatusOr<PendingMigration>)> done_;
  absl::Mutex mu_;
  std::optional<PlanOrder> order_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::server
