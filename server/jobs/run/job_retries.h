// Decides what follows when a job cannot go on: it tries again after a pause that doubles with each loss, it has FAILED
// after too many without getting ahead, or it is PAUSED with an error that only a user can repair.  A full disk counts
// as no loss, for a while.  Thread-compatible; each call writes to the journal.
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
  // All borrowed.  load statistics: its losses and blocks are counted here.
  JobRetries(const JobOptions* options, TrainingHost* host, JobBook* book, TrainingCounts* counts)
      : options_(*options), host_(host), book_(book), counts_(counts) {}

  // Its attempt was lost, or what was to make its data ready.
  void Lose(Job* job, const absl::Status& why);
  void Fail(Job* job, const absl::Status& why);
  // PAUSED by itself; `error`, which has a reason, stays until it is resumed.
  void Block(Job* job, const absl::Status& error);

  // Whether it waits after a loss; until then, or until somebody asks for it.
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
