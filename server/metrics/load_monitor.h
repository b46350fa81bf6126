// The server's load as GetLoad and the metrics show it, copied from the engine's parts at intervals.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/batching/scheduler_stats.h"
#include "server/engine/live_requests.h"
#include "server/engine/step_choices.h"
#include "server/engine/train_slices.h"
#include "server/fleet/serving_group.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

struct LoadSnapshot {
  struct Worker {
    int rank = -1;
    int64_t pid = 0;
    std::string host;
    std::string state;
    std::string metrics_address;  // HOST:PORT; empty: none
    batching::RankStats stats;
  };
  bool ready = false;
  std::string not_ready_reason;
  batching::SchedulerStats scheduler;
  std::vector<Worker> workers;
  int64_t group_epoch = 0;
  // What is chosen by trial (engine/step_choices.h), since the group formed.
  struct Trial {
    int64_t steps = 0, other_steps = 0;  // those that did not go the first way
    double gained_seconds = 0;
  };
  std::optional<Trial> placement;      // of --placement=auto
  std::optional<Trial> micro_batches;  // once some step could be cut
};

class LoadMonitor {
 public:
  // All borrowed; they outlive this.
  LoadMonitor(const ServingGroup* group, const LiveRequests* requests, const TrainSlices* slices, StepChoices* choices,
              ServerMetrics* metrics)
      : group_(group), requests_(requests), slices_(slices), choices_(choices), metrics_(metrics) {}

  // Copies the load.  Call on the engine's thread.
  void Update();
  // Returns the load at the last Update.  Thread-safe.
  LoadSnapshot load() const;

 private:
  const ServingGroup* const group_;
  const LiveRequests* const requests_;
  const TrainSlices* const slices_;
  StepChoices* const choices_;
  ServerMetrics* const metrics_;
  batching::SchedulerStats reported_;  // totals that the counters already have
  int64_t reported_slices_ = 0;
  absl::Duration reported_slice_time_;
  mutable absl::Mutex mu_;
  LoadSnapshot snapshot_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
