// A thread that makes residency plans, since they may take seconds: one at a time, at a lower priority than serving.
#pragma once

#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/balancer/pending_migration.h"

namespace switchyard::server {

class PlannerThread {
 public:
  // `done` is called on the thread, once for each Plan, unless this is destroyed before.
  explicit PlannerThread(absl::AnyInvocable<void(absl::StatusOr<PendingMigration>)> done);
  // Waits for the plan that is being made.
  ~PlannerThread();

  // Never blocks.  REQUIRES: what was planned before is done.
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
