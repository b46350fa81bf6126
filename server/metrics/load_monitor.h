// The load as GetLoad and the metrics show it: taken from the engine's parts now and then.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/balancer/expert_load_balancing.h"
#include "server/engine/live_requests.h"
#include "server/engine/train_slices.h"
#include "server/fleet/serving_group.h"
#include "server/metrics/load_snapshot.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class LoadMonitor {
 public:
  // All borrowed; they outlive this.
  struct Parts {
    const ServingGroup* group;
    const LiveRequests* requests;
    const TrainSlices* slices;
    ExpertLoadBalancing* experts;
  };
  LoadMonitor(const Parts& parts, ServerMetrics* metrics) : parts_(parts), metrics_(metrics) {}

  // The engine's thread.
  void Update();
  // As the last Update found it; any thread.
  LoadSnapshot load() const;

 private:
  LoadSnapshot Take() const;
  void ReportTotals(const batching::SchedulerStats& stats);
  void ReportSlices();

  const Parts parts_;
  ServerMetrics* const metrics_;
  batching::SchedulerStats reported_;  // totals that the counters already have
  int64_t reported_slices_ = 0;
  absl::Duration reported_slice_time_;
  mutable absl::Mutex mu_;
  LoadSnapshot snapshot_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
