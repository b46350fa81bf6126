// Policy for jobs that cannot go on: a job tries again after a pause that doubles with each loss, has FAILED after too
// many losses without progress, or is PAUSED with an error that only a user can repair.  For a while a full disk does
// not count as a loss.  Thread-compatible; each call writes to the journal.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/job_book.h"
#include "server/jobs/run/run_context.h"
#include "server/jobs/training_counts.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

class JobRetries {
 public:
  // All borrowed.  Losses and blocks are counted in `counts`.
  JobRetries(const JobOptions* options, TrainingHost* host, JobBook* book, TrainingCounts* counts)
      : options_(*options), host_(host), book_(book), counts_(counts) {}

  // The job's attempt was lost, or its preparation failed.
  void Lose(Job* job, const absl::Status& why);
  void Fail(Job* job, const absl::Status& why);
  // Pauses the job with `error`, which has an ErrorReason and stays until the job is resumed.
  void Block(Job* job, const absl::Status& error);

  // Whether the job pauses after a loss, until its time has come or EndPause is called.
  bool Pauses(const Job& job) const;
  void EndPause(const Job& job) { not_before_.erase(job.sequence); }

 private:
  const JobOptions& options_;
  TrainingHost* const host_;
  JobBook* const book_;
  TrainingCounts* const counts_;
  std::map<int64_t, absl::Time> not_before_;  // of jobs that pause, by sequence
};

}  // namespace switchyard::server
