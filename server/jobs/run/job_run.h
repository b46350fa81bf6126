// State machine of a job under way, from its turn in the queue until its attempt is over and the job moves on:
//
//   Prepare ─► waits for workers (Tick) ─► attempt ─► over()
// Thread-compatible; reads the host's clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/job.h"
#include "server/jobs/run/attempt.h"
#include "server/jobs/run/job_preparation.h"
#include "server/jobs/run/run_context.h"
#include "server/jobs/run/run_progress.h"

namespace switchyard::server {

class JobRun {
 public:
  // Context and job are borrowed.  metrics_slot: the lowest free one.  early: the job only prepares its data, and then
  // waits for its turn again.  REQUIRES: the job is PREPARING.
  JobRun(RunContext* context, Job* job, int metrics_slot, bool early)
      : context_(*context),
        job_(job),
        metrics_slot_(metrics_slot),
        early_(early),
        preparation_(context, job),
        progress_(context, job) {}

  // Prepares the job's data, then waits for workers.
  void Prepare();
  void OnPrepareProgress(int64_t done, int64_t total) { preparation_.OnProgress(done, total); }
  void OnPrepared(const absl::StatusOr<PackedData>& packed);
  // Starts the attempt once there are workers; checks its time limits.  Returns workers that were given up for good.
  std::vector<TrainingWorker> Tick(absl::Time now);
  void StopAsAsked();
  // The server stops: the job saves and waits for the next server.
  void Drain();
  // The attempt could not run for this time, which is no fault of its ranks.
  void Postpone(absl::Duration by, absl::Time now);
  void Note(const std::string& note) { context_.book->Note(job_, note); }

  // Handles a report of one of the job's workers.  REQUIRES: has_workers().
  void Receive(WorkerId id, TrainingReport report);
  void OnLost(WorkerId id, const std::string& reason);
  // Moves the job to its next state if all ranks have ended.
  void ConcludeIfOver();

  const Job& job() const { return *job_; }
  int metrics_slot() const { return metrics_slot_; }
  bool early() const { return early_; }
  const RunProgress& progress() const { return progress_; }
  bool has_workers() const { return attempt_ != nullptr; }
  bool HasWorker(WorkerId id) const;
  int64_t epoch() const { return attempt_ == nullptr ? 0 : attempt_->epoch(); }  // 0 without an attempt
  bool over() const { return over_; }

 private:
  void TryStart();
  void StartAttempt();
  void StopIn(jobs::JobEvent event, const std::string& without_workers, const std::string& aborted, bool cancel);
  void EndAs(jobs::JobEvent event, const std::string& reason);
  void KeepWarnings(const std::vector<std::string>& warnings);

  RunContext& context_;
  Job* const job_;
  const int metrics_slot_;
  const bool early_;
  JobPreparation preparation_;
  RunProgress progress_;
  std::unique_ptr<Attempt> attempt_;
  std::string store_token_;
  std::vector<std::string> warnings_;           // from its ranks' starts, each once
  absl::Time retry_at_ = absl::InfinitePast();  // after the journal refused a start
  bool over_runtime_ = false;
  bool draining_ = false;
  bool over_ = false;
};

}  // namespace switchyard::server
