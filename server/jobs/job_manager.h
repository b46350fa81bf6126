// The front of all that is done about training jobs: what users ask for, and the parts that it consists of.
//
//   JobBook (all jobs, the journal) · JobRuns (jobs under way, what workers report) · JobRetries (what follows a loss)
//   · TrainerPools (the workers that are there)
//
// First come, first served: a job that waits for workers holds back those behind it that want the same kind (training
// alone, or serving as well).  A job whose attempt was lost keeps its place; a paused one goes to the end.
// All calls on one thread (job_loop.h).  No sockets, files or clock: it reaches them through host, journal and workers.
// A job is in the journal before it is acknowledged or acted upon, and an attempt's number before any worker receives
// it, so no two trainers ever have the same one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job_book.h"
#include "server/jobs/run/job_retries.h"
#include "server/jobs/run/job_runs.h"
#include "server/jobs/run/run_context.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_counts.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

class JobManager {
 public:
  using Options = JobOptions;
  // All borrowed.  `sink` may be null.
  JobManager(Options options, JobJournal* journal, TrainingHost* host, ProgressSink* sink);

  // Reads the journal; jobs that were under way wait again, or become what they were to become.  Nothing starts until
  // the journal can be written.
  absl::Status Start();

  struct Submitted {
    JobPtr job;
    bool existed = false;
  };
  // The job that this request has made before; null: none.  ALREADY_EXISTS: of another spec.
  absl::StatusOr<JobPtr> FindRequest(const std::string& request_id, const jobs::JobSpec& spec);
  // FAILED_PRECONDITION: there are not as many as it needs, nor will be.  `field` is for the message.
  absl::Status CheckWorkers(const jobs::JobSpec& spec, const std::string& field = "spec.workers") const;
  absl::StatusOr<Submitted> Submit(const std::string& request_id, const jobs::JobSpec& spec);
  absl::StatusOr<JobPtr> Get(const std::string& id);
  JobPage List(const JobFilter& filter) const { return book_.List(filter); }
  absl::StatusOr<JobPtr> Pause(const std::string& id);
  absl::StatusOr<JobPtr> Resume(const std::string& id) { return ResumeOn(id, std::nullopt); }
  // On so many workers from now on.  What the model allows is the caller's to check: this opens no file.
  absl::StatusOr<JobPtr> ResumeOn(const std::string& id, std::optional<int32_t> workers);
  // The spec that ResumeOn would give it with this other number, or why it would not.
  absl::StatusOr<jobs::JobSpec> CheckOtherWorkers(const Job& job, int32_t workers) const;
  absl::StatusOr<JobPtr> Cancel(const std::string& id);
  absl::StatusOr<int64_t> Watch(const std::string& id, JobBook::WatchFn watch);
  void Unwatch(int64_t watcher) { book_.Unwatch(watcher); }

  JobRuns& runs() { return runs_; }
  // Every 100 ms or so.
  void Tick();
  // Running jobs stop with a checkpoint and wait for the next server; nothing starts any more.
  void Drain() { runs_.Drain(); }
  // The last call: links and watches end.
  void End();
  bool idle() const { return runs_.empty(); }  // no job is prepared or trained
  const TrainingCounts& counts();

 private:
  absl::StatusOr<Job*> FindJob(const std::string& id);
  // As for a user who asks for what is so, or on its way.  `edit`: as JobBook::Move's.
  absl::StatusOr<JobPtr> Ask(const std::string& id, jobs::JobEvent event, const std::string& reason,
                             std::initializer_list<jobs::JobState> already,
                             const std::function<void(Job*)>& edit = nullptr);
  struct Room {
    int available = 0;
    bool held = false;  // the first that waits for more keeps others from what is there
  };
  // Begins jobs for which there are workers; notes of each other what it waits for.
  void Admit();
  // False: the journal cannot be written, so nobody else begins either.
  bool Consider(Job* job, Room* room);

  const Options options_;
  TrainingHost* const host_;
  TrainingCounts counts_;
  JobBook book_;
  TrainerPools pools_;
  JobRetries retries_;
  JobRuns runs_;
};

}  // namespace switchyard::server
