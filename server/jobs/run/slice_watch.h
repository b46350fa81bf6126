// Watches the time slices that serving leaves to the job which trains on its workers: tells the engine whether one is
// wanted, and gives the job back the time that it could not use.  Thread-compatible; reads the host's clock.
#pragma once

#include "absl/time/time.h"
#include "server/jobs/run/job_run.h"
#include "server/jobs/run/run_context.h"

namespace switchyard::server {

class SliceWatch {
 public:
  // Borrowed.
  explicit SliceWatch(RunContext* context) : context_(*context) {}

  // At each tick.  run: the one whose attempt is on serving workers; null: none is.
  void Tick(JobRun* run);

 private:
  RunContext& context_;
  // At the last tick.
  absl::Time watched_at_ = absl::InfinitePast();
  absl::Duration given_;
  absl::Time last_slice_at_ = absl::InfinitePast();
};

}  // namespace switchyard::server
