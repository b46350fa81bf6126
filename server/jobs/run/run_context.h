// What the jobs under way share.  Plain values; all of it is borrowed from the job manager.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "server/jobs/job_book.h"
#include "server/jobs/run/attempt.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_counts.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

class JobRetries;

// Limits and durations that the job manager keeps; they do not change after the start.
struct JobOptions {
  TrainerPool::Options trainers;
  int serving_workers = 0;  // that also train; 0: they do not
  Attempt::Limits limits;
  size_t max_open_jobs = 1000;
  size_t max_kept_jobs = 10000;
  int max_losses = 10;  // in a row without a new checkpoint or a step beyond the furthest
  absl::Duration first_pause = absl::Milliseconds(250);  // after the first loss; doubles with each
  absl::Duration longest_pause = absl::Minutes(1);
  absl::Duration full_disk = absl::Hours(1);        // how long a job tries again and again while the disk is full
  absl::Duration save_progress = absl::Seconds(1);  // at most so often
  int64_t form_deadline_ms = 60000;
};

struct RunContext {
  const JobOptions* options = nullptr;
  TrainingHost* host = nullptr;
  JobBook* book = nullptr;
  TrainerPools* pools = nullptr;
  JobRetries* retries = nullptr;
  ProgressSink* sink = nullptr;  // null: nobody writes curves
  TrainingCounts* counts = nullptr;
  int64_t last_epoch = 0;  // of all attempts so far
};

}  // namespace switchyard::server
