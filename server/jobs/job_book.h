// All jobs, in memory and in the journal, and their watchers.
//
// A change that a user asked for is journaled before it takes effect.  A worker's report takes effect at once: if the
// journal cannot be written, `clean()` is false until it is.  Thread-compatible; reads no clock; blocks only on the
// journal.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job.h"
#include "server/jobs/journal/job_store.h"

namespace switchyard::server {

using JobPtr = std::shared_ptr<const Job>;  // an immutable copy of the job at one moment, shared by its readers

struct JobFilter {
  size_t most = 100;
  size_t most_bytes = size_t{2} << 20;                           // of jobs on a page, about; at least one job
  int64_t before = 0;                                            // only jobs of lower sequence; 0 = from the newest on
  std::vector<jobs::JobState> states = {};                       // empty: all
  std::vector<std::pair<std::string, std::string>> labels = {};  // the job must have all of these
  std::optional<std::string> owner = {};                         // only jobs of this owner
};
struct JobPage {
  std::vector<JobPtr> jobs;  // newest first
  bool more = false;
};

class JobBook {
 public:
  static constexpr size_t kMaxWatchers = 256;
  using WatchFn = std::function<void(JobPtr)>;  // called with null at the end: the server stops

  explicit JobBook(JobJournal* journal) : journal_(journal) {}

  absl::Status Load();
  // Adds a job to the journal, then to memory; assigns its sequence and its place at the end of the queue.  `reason`:
  // of its first state.
  absl::StatusOr<Job*> Add(Job job, const std::string& reason = "submitted");
  Job* Find(const std::string& id);
  Job* FindRequest(const std::string& owner, const std::string& request_id);
  JobPage List(const JobFilter& filter) const;
  const std::map<int64_t, std::unique_ptr<Job>>& jobs() const { return jobs_; }  // by sequence
  size_t num_open() const;

  // Moves a job as a user asked.  On an error nothing has changed: FailedPrecondition if the table has no such move, or
  // the journal's error.  `edit` may change more of the job at the same time.
  absl::Status Move(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms,
                    const std::function<void(Job*)>& edit = nullptr);
  // Moves a job for an event that has happened.  REQUIRES: the table has the move.
  void Happen(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms);
  // Forgets a job for ever; its folder is then to be removed.  On an error nothing has changed.  REQUIRES: it has
  // ended.
  absl::Status Delete(Job* job);
  absl::StatusOr<std::vector<std::string>> DeletedJobs() { return journal_->DeletedJobs(); }
  absl::Status FolderRemoved(const std::string& id) { return journal_status_ = journal_->FolderRemoved(id); }
  // Writes the job to the journal.  After an error it stays marked as unsaved.
  absl::Status Save(Job* job);
  // Retries unsaved jobs; without any, writes some job to see whether the journal works again.
  void Flush();
  bool clean() const { return unsaved_.empty(); }
  // Status of the last write.
  const absl::Status& journal_status() const { return journal_status_; }
  int64_t NextPlace() { return ++last_place_; }
  // Sets Job.note and reports the job to its watchers if the note has changed.
  void Note(Job* job, const std::string& note);
  void NoteUnwritten(Job* job);

  // Calls `watch` at once and at each Report of the job (every change of state makes one), until Unwatch.
  // ResourceExhausted: too many watchers.
  absl::StatusOr<int64_t> Watch(Job* job, WatchFn watch);
  void Unwatch(int64_t watcher);
  // Calls each watcher with null, and forgets it.
  void EndWatches();
  void Report(const Job& job);
  static JobPtr Picture(const Job& job) { return std::make_shared<const Job>(job); }

 private:
  absl::Status Write(const Job& job) { return journal_status_ = journal_->Save(job); }
  struct Watcher {
    int64_t sequence = 0;  // of the job
    WatchFn watch;
  };
  void Erase(const Job& job);

  JobJournal* const journal_;
  std::map<int64_t, std::unique_ptr<Job>> jobs_;
  std::map<std::string, Job*> by_id_, by_request_;  // by_request_: by RequestKey
  std::set<int64_t> unsaved_;
  absl::Status journal_status_;
  std::map<int64_t, Watcher> watchers_;
  int64_t last_sequence_ = 0, last_place_ = 0, last_watcher_ = 0;
};

}  // namespace switchyard::server
