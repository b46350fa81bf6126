#include "server/balancer/pending_migration.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr int kPlannerNice = 10;
Planner planner_in_use = placement::PlanResidency;

}  // namespace

std::vector<placement::Placement> CopyLayers(const LayerStates& layers) {
  std::vector<placement::Placement> copy;
  for (const auto& layer : layers) copy.push_back(*layer);
  return copy;
}

placement::ResidencyProblem ProblemOf(const PlanOrder& order) {
  placement::ResidencyProblem problem;
  problem.phases = order.meter.Profiles(order.load_stats);
  problem.costs = order.meter.PlanCosts(order.horizon_steps);
  problem.present = CopyLayers(order.present);
  problem.layer_slots = order.layer_slots;
  problem.next_epoch = static_cast<uint64_t>(order.next_epoch);
  return problem;
}

void SetPlanner(Planner planner) { planner_in_use = planner; }

absl::StatusOr<PendingMigration> MakePlan(const PlanOrder& order) {
  ASSIGN_OR_RETURN(placement::ResidencyPlan plan, planner_in_use(ProblemOf(order)));
  return MakePendingMigration(std::move(plan), order.present, order.layer_slots);
}

absl::StatusOr<PendingMigration> MakePendingMigration(placement::ResidencyPlan plan, const LayerStates& present,
                                                      int layer_slots) {
  PendingMigration pending;
  std::vector<placement::Placement> layers = CopyLayers(present);
  LayerStates shared = present;
  for (const placement::ResidencyMigration& migration : plan.migrations) {
    RETURN_IF_ERROR(placement::ApplyMigration(migration, layer_slots, &layers));
    absl::flat_hash_set<int32_t> changed;
    for (const auto* moves : {&migration.arrivals, &migration.departures})
      for (const placement::ResidencyMove& move : *moves) changed.insert(move.layer);
    for (const int32_t layer : changed) {
      const auto l = static_cast<size_t>(layer);
      shared[l] = std::make_shared<const placement::Placement>(layers[l]);
    }
    pending.after.push_back(shared);
  }
  pending.plan = std::move(plan);
  return pending;
}

PlannerThread::PlannerThread(absl::AnyInvocable<void(absl::StatusOr<PendingMigration>)> done)
    : done_(std::move(done)), thread_([this] { Run(); }) {}

PlannerThread::~PlannerThread() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void PlannerThread::Plan(PlanOrder order) {
  absl::MutexLock lock(&mu_);
  order_ = std::move(order);
}

void PlannerThread::Run() {
  // Lowers this thread's priority only; without permission planning keeps serving's priority.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kPlannerNice);
  for (;;) {
    std::optional<PlanOrder> order;
    {
      absl::MutexLock lock(&mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || order_.has_value(); };
      mu_.Await(absl::Condition(&wanted));
      if (stop_) return;
      order = std::exchange(order_, std::nullopt);
    }
    done_(MakePlan(*order));
  }
}

}  // namespace switchyard::server
