// What the jobs under way share.  Plain values; all of it is borrowed from the job manager.
#pragma once

#include <cstdint>

#include "server/jobs/job_book.h"
#include "server/jobs/job_options.h"
#include "server/jobs/progress_sink.h"
#include "server/jobs/run/job_retries.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_counts.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

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
