// Context that the jobs under way share.  Plain values, borrowed from the job manager.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/jobs/job_book.h"
#include "server/jobs/run/attempt.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_counts.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

class JobRetries;

// The job manager's limits and durations, constant after the start.
struct JobOptions {
  TrainerPool::Options trainers;
  int serving_workers = 0;  // serving workers that also train; 0: none do
  Attempt::Limits limits;
  size_t max_open_jobs = 1000;
  size_t max_jobs = 10000;  // open or not, until they are deleted
  int max_losses = 10;      // in a row, without a new checkpoint or a step further than before
  absl::Duration first_pause = absl::Milliseconds(250);  // after the first loss; doubles with each
  absl::Duration longest_pause = absl::Minutes(1);
  absl::Duration full_disk = absl::Hours(1);        // how long a job retries while the disk is full
  absl::Duration save_progress = absl::Seconds(1);  // shortest time between two writes of progress
  int64_t form_deadline_ms = 60000;
  bool encrypt_links = false;  // TLS between the ranks of a job
  // Folders in the checkpoint root of the model and the adapter that this server serves.
  std::vector<std::string> served = {};
};

struct RunContext {
  const JobOptions* options = nullptr;
  TrainingHost* host = nullptr;
  JobBook* book = nullptr;
  TrainerPools* pools = nullptr;
  JobRetries* retries = nullptr;
  ProgressSink* sink = nullptr;  // null: curves are not written
  TrainingCounts* counts = nullptr;
  int64_t last_epoch = 0;  // of the newest attempt
};

}  // namespace switchyard::server
