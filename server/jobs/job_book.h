// All jobs, in memory and in the journal, and their watchers.
//
// A change that a user asked for is in the journal before it is here.  A worker's report counts at once: where the
// journal cannot be written it is here first, and `clean()` is false until it is there, too.
// Thread-compatible; reads no clock; blocks on the journal alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job.h"
#include "server/jobs/journal/job_store.h"

namespace switchyard::server {

using JobPtr = std::shared_ptr<const Job>;  // a picture of one moment; shared by whoever looks at it

struct JobFilter {
  size_t most = 100;
  size_t most_bytes = size_t{2} << 20;                           // or fewer jobs, but one, of about so much
  int64_t before = 0;                                            // sequence; 0 = from the newest on
  std::vector<jobs::JobState> states = {};                       // empty: all
  std::vector<std::pair<std::string, std::string>> labels = {};  // all of them
};
struct JobPage {
  std::vector<JobPtr> jobs;  // newest first
  bool more = false;
};

class JobBook {
 public:
  static constexpr size_t kMaxWatchers = 256;
  using WatchFn = std::function<void(JobPtr)>;  // null: nothing follows, the server stops

  // `max_kept`: of more jobs than these the oldest that are over are forgotten.
  JobBook(JobJournal* journal, size_t max_kept) : journal_(journal), max_kept_(max_kept) {}

  absl::Status Load();
  // Takes it into the journal, then here; it gets its sequence and its place at the end of the queue.
  absl::StatusOr<Job*> Add(Job job);
  Job* Find(const std::string& id);
  Job* FindRequest(const std::string& request_id);
  JobPage List(const JobFilter& filter) const;
  const std::map<int64_t, std::unique_ptr<Job>>& jobs() const { return jobs_; }  // by sequence
  size_t num_open() const;

  // A user's request: FailedPrecondition where the table has no such move, or the journal's error; then nothing has
  // changed.  `edit` may change more of the job at the same time.
  absl::Status Move(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms,
                    const std::function<void(Job*)>& edit = nullptr);
  // What has happened.  REQUIRES: the table has the move.
  void Happen(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms);
  // Writes the job as it is.  An error also makes it unclean.
  absl::Status Save(Job* job);
  // Tries again to write what could not be written, or, if nothing is left of that, any job.
  void Flush();
  bool clean() const { return unsaved_.empty(); }
  // Of the last write: why it failed, or OK.
  const absl::Status& journal_status() const { return journal_status_; }
  int64_t NextPlace() { return ++last_place_; }
  // Changes Job.note and tells it, where it differs.
  void Note(Job* job, const std::string& note);
  void NoteUnwritten(Job* job);

  // Called at once and with every Report, which each change of state makes, until Unwatch.  ResourceExhausted: too
  // many.
  absl::StatusOr<int64_t> Watch(Job* job, WatchFn watch);
  void Unwatch(int64_t watcher);
  // Each gets null, and is no watcher any more.
  void EndWatches();
  void Report(const Job& job);
  static JobPtr Picture(const Job& job) { return std::make_shared<const Job>(job); }

 private:
  absl::Status Write(const Job& job) { return journal_status_ = journal_->Save(job); }
  struct Watcher {
    int64_t sequence = 0;  // of the job
    WatchFn watch;
  };
  void Forget();

  JobJournal* const journal_;
  const size_t max_kept_;
  std::map<int64_t, std::unique_ptr<Job>> jobs_;
  std::map<std::string, Job*> by_id_, by_request_;
  std::set<int64_t> unsaved_;
  absl::Status journal_status_;
  std::map<int64_t, Watcher> watchers_;
  int64_t last_sequence_ = 0, last_place_ = 0, last_watcher_ = 0;
};

}  // namespace switchyard::server
