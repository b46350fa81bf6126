// Counts of training jobs for the metrics.  Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "server/jobs/job.h"

namespace switchyard::server {

struct TrainingCounts {
  // A running job has the lowest free slot; jobs beyond these slots only count in the sums.
  static constexpr int kSlots = 8;
  struct Slot {
    std::string job;  // its id
    jobs::TrainProgress progress;
    jobs::EvaluationResult evaluation;
    bool evaluated = false;
    int64_t checkpoint_step = 0;
    double checkpoint_age_seconds = 0;  // since the newest checkpoint; without one, since the job first ran
  };

  std::array<int64_t, jobs::kNumJobStates> jobs = {};  // now, by state
  std::map<int, Slot> slots;                           // of running jobs that have done a step
  int workers = 0, busy_workers = 0;
  bool journal_ok = true;  // the last write succeeded
  // Since the server's start:
  int64_t forks = 0;
  int64_t attempts = 0;
  int64_t losses = 0;
  int64_t not_finite = 0;
  int64_t blocks = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t dropped_rows = 0;
  int64_t checkpoints = 0;
  jobs::StepSeconds seconds;  // of all steps together
};

}  // namespace switchyard::server
