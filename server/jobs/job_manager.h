// Manager of training jobs: takes users' requests, decides which job begins, and owns the parts that do the rest:
//
//   JobBook (all jobs, the journal) · JobRuns (jobs under way, what workers report) · JobRetries (what follows a loss)
//   · TrainerPools (the registered workers)
//
// First come, first served: a job that waits for workers holds back later jobs that want the same kind (workers that
// only train, or that also serve).  A job whose attempt was lost keeps its place; a resumed one goes to the end.  All
// calls must come on one thread (job_loop.h).  Uses no sockets, files or clock but through host, journal and workers.
// A job is journaled before it is acknowledged or acted upon, and an attempt's number before any worker receives it, so
// two attempts never share a number.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/fork/seed_fork.h"
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

  // Reads the journal.  Jobs that were under way wait again, or move to the state that they were about to reach.
  // Nothing starts until the journal can be written.
  absl::Status Start();

  struct Submitted {
    JobPtr job;
    bool existed = false;
  };
  // Returns the job that this request of `owner` made before; null if there is none.  ALREADY_EXISTS: it made a job of
  // another spec.
  absl::StatusOr<JobPtr> FindRequest(const std::string& request_id, const jobs::JobSpec& spec,
                                     const std::string& owner = "");
  absl::StatusOr<Submitted> Submit(const std::string& request_id, const jobs::JobSpec& spec,
                                   const std::string& owner = "");
  // Whether the job's model is in the folder of another key's job.
  bool BeginsFromOthers(const jobs::JobSpec& spec, const std::string& owner) const;
  // An id that no job has.
  std::string DrawId();
  // As FindRequest, for a fork: ALREADY_EXISTS if the request was another one.  Needs no parent.
  absl::StatusOr<JobPtr> FindFork(const ForkRequest& request, const std::string& owner = "");
  // Returns the errors of Submit and Fork that are certain before files are looked at, or made; also if the last write
  // of the journal failed.
  absl::Status CheckAdmission(const jobs::JobSpec& spec) const;
  // Makes a job of a fork that has its folder, with the errors of Submit.
  absl::StatusOr<Submitted> Fork(const ForkRequest& request, const Job& parent, const ForkedJob& forked,
                                 const std::string& owner = "");
  absl::StatusOr<JobPtr> Get(const std::string& id);
  JobPage List(const JobFilter& filter) const { return book_.List(filter); }
  // Ids of all jobs of this owner.
  std::vector<std::string> JobsOf(const std::string& owner) const;
  absl::StatusOr<JobPtr> Pause(const std::string& id);
  absl::StatusOr<JobPtr> Resume(const std::string& id) { return ResumeOn(id, std::nullopt); }
  // Resumes on another number of workers, if given.  The caller must check the model: this opens no file.
  absl::StatusOr<JobPtr> ResumeOn(const std::string& id, std::optional<int32_t> workers);
  // Returns the spec that ResumeOn would give the job, or why it would refuse.
  absl::StatusOr<jobs::JobSpec> CheckOtherWorkers(const Job& job, int32_t workers) const;
  absl::StatusOr<JobPtr> Cancel(const std::string& id);
  // Forgets a job that has ended; the caller then removes its folder (job_folder.h) and calls FolderRemoved.
  // FAILED_PRECONDITION: it has not ended, or a job that has not ended begins from a checkpoint of it.
  absl::Status Delete(const std::string& id);
  // Ids of deleted jobs whose folders may still be there.
  absl::StatusOr<std::vector<std::string>> DeletedJobs() { return book_.DeletedJobs(); }
  void FolderRemoved(const std::string& id);
  absl::StatusOr<int64_t> Watch(const std::string& id, JobBook::WatchFn watch);
  void Unwatch(int64_t watcher) { book_.Unwatch(watcher); }

  JobRuns& runs() { return runs_; }
  // Every 100 ms or so.
  void Tick();
  // Stops running jobs with a checkpoint, so that they wait for the next server; nothing starts afterwards.
  void Drain() { runs_.Drain(); }
  // Ends links and watches.  Must be the last call.
  void End();
  bool idle() const { return runs_.empty(); }  // no job is being prepared or trained
  const TrainingCounts& counts();

 private:
  absl::StatusOr<Job*> FindJob(const std::string& id);
  // Returns FAILED_PRECONDITION if the server will never have enough workers.  `field`: the field's name for the error.
  absl::Status CheckWorkers(const jobs::JobSpec& spec, const std::string& field = "spec.workers") const;
  // Whether spec and server allow a new job.
  absl::Status CheckNew(const jobs::JobSpec& spec) const;
  absl::StatusOr<Submitted> AddJob(Job job, const std::string& reason);
  // Moves a job as a user asked; succeeds without a change if the job is in one of the states `already`.  `edit`: as
  // for JobBook::Move.
  absl::StatusOr<JobPtr> Ask(const std::string& id, jobs::JobEvent event, const std::string& reason,
                             std::initializer_list<jobs::JobState> already,
                             const std::function<void(Job*)>& edit = nullptr);
  struct Room {
    int available = 0;
    bool held = false;  // a job that waits for more workers holds back later ones
  };
  // Begins jobs for which there are workers, has one that waits pack its text, and sets the notes of those that wait.
  void Admit();
  // Returns false if the journal cannot be written; then no other job begins either.
  bool Consider(Job* job, Room* room, bool may_pack);
  bool Begin(Job* job, bool early);

  const Options options_;
  TrainingHost* const host_;
  TrainingCounts counts_;
  JobBook book_;
  TrainerPools pools_;
  JobRetries retries_;
  JobRuns runs_;
  std::set<std::string> deleted_;  // by this process: ids
};

// NOT_FOUND: the error for an id that no job has, and for one of a job that the caller may not see.
absl::Status NoSuchJob(const std::string& id);

}  // namespace switchyard::server
