// Records an attempt's progress: in the job, the counts, the curves and, at intervals, the journal.  Measures how long
// the job has run.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/jobs/job.h"
#include "server/jobs/run/run_context.h"

namespace switchyard::server {

class RunProgress {
 public:
  RunProgress(RunContext* context, Job* job) : context_(*context), job_(job), ran_before_ms_(job->ran_ms) {}

  // All ranks have started and go on from this step.  Does nothing if the job no longer waits for that.
  void Start(int64_t step, const std::string& warnings);
  void OnStep(const jobs::TrainProgress& progress);
  void OnEvaluated(const jobs::EvaluationReport& report);
  void OnSaved(jobs::SavedCheckpoint checkpoint);
  // Journals new progress, at most every JobOptions::save_progress.
  void Save();
  // Excludes a time in which the attempt could not run.
  void Postpone(absl::Duration by, absl::Time now);
  // Ends the attempt: adds its running time to the job's.
  void End();

  bool running() const { return running_since_ < absl::InfiniteFuture(); }
  bool has_steps() const { return first_step_at_ != absl::InfinitePast(); }
  bool IsOverRuntime() const;

 private:
  void Count(int64_t tokens_before, const jobs::TrainProgress& progress);
  // Sets the job's best_checkpoint once that of its best evaluation is complete.
  void NoteBestCheckpoint();
  int64_t RanMs() const;

  RunContext& context_;
  Job* const job_;
  const int64_t ran_before_ms_;  // in earlier attempts
  absl::Time running_since_ = absl::InfiniteFuture();
  absl::Time first_step_at_ = absl::InfinitePast();
  int64_t first_step_ = 0;
  int64_t resumed_step_ = 0;  // of the checkpoint from which the attempt goes on; 0 = from the beginning
  absl::Time saved_at_ = absl::InfinitePast();
  bool unsaved_ = false;
};

}  // namespace switchyard::server
