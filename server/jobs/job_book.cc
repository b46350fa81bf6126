#include "server/jobs/job_book.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

void Enter(Job* job, jobs::JobState state, const std::string& reason, int64_t unix_ms) {
  job->state = state;
  job->changes.push_back({state, unix_ms, reason});
  if (job->changes.size() > Job::kMostChanges) job->changes.erase(job->changes.begin());
  if (state == jobs::JobState::kRunning && job->started_unix_ms == 0) job->started_unix_ms = unix_ms;
  if (jobs::IsFinal(state)) job->ended_unix_ms = unix_ms;
  job->note.clear();
  if (state != jobs::JobState::kRunning) job->seconds_left = 0;
}

bool Fits(const Job& job, const JobFilter& filter) {
  if (filter.owner.has_value() && job.owner != *filter.owner) return false;
  if (!filter.states.empty() &&
      std::find(filter.states.begin(), filter.states.end(), job.state) == filter.states.end()) {
    return false;
  }
  return std::all_of(filter.labels.begin(), filter.labels.end(), [&job](const auto& label) {
    return std::find(job.spec.labels.begin(), job.spec.labels.end(), label) != job.spec.labels.end();
  });
}

// Returns about how many bytes a copy of the job takes.
size_t BytesAbout(const Job& job) {
  size_t bytes = sizeof(Job) + job.note.size() + job.error.message().size() + job.fork_digest.size();
  for (const std::vector<std::string>* names : {&job.spec.datasets, &job.spec.evaluation, &job.spec.evaluation_names}) {
    for (const std::string& name : *names) bytes += sizeof(name) + name.size();
  }
  for (const std::optional<jobs::EvaluationResult>* evaluation : {&job.evaluation, &job.best_evaluation}) {
    if (!evaluation->has_value()) continue;
    for (const jobs::SetResult& set : (*evaluation)->sets) bytes += sizeof(set) + set.name.size();
  }
  for (const auto& [name, value] : job.spec.labels) bytes += 2 * sizeof(name) + name.size() + value.size();
  for (const StateChange& change : job.changes) bytes += sizeof(change) + change.reason.size();
  return bytes;
}

}  // namespace

absl::Status JobBook::Load() {
  ASSIGN_OR_RETURN(std::vector<Job> jobs, journal_->Load());
  for (Job& loaded : jobs) {
    auto job = std::make_unique<Job>(std::move(loaded));
    last_sequence_ = std::max(last_sequence_, job->sequence);
    last_place_ = std::max(last_place_, job->queued);
    by_id_[job->id] = job.get();
    if (!job->request_id.empty()) by_request_[RequestKey(job->owner, job->request_id)] = job.get();
    jobs_[job->sequence] = std::move(job);
  }
  return absl::OkStatus();
}

absl::StatusOr<Job*> JobBook::Add(Job job, const std::string& reason) {
  job.sequence = last_sequence_ + 1;
  job.queued = NextPlace();
  Enter(&job, jobs::JobState::kPending, reason, job.created_unix_ms);
  RETURN_IF_ERROR(Write(job));
  last_sequence_ = job.sequence;
  auto kept = std::make_unique<Job>(std::move(job));
  Job* const raw = kept.get();
  by_id_[raw->id] = raw;
  if (!raw->request_id.empty()) by_request_[RequestKey(raw->owner, raw->request_id)] = raw;
  jobs_[raw->sequence] = std::move(kept);
  return raw;
}

void JobBook::Erase(const Job& job) {
  by_id_.erase(job.id);
  if (!job.request_id.empty()) by_request_.erase(RequestKey(job.owner, job.request_id));
  unsaved_.erase(job.sequence);
  jobs_.erase(job.sequence);  // the last, as it ends the job
}

absl::Status JobBook::Delete(Job* job) {
  SY_CHECK(jobs::IsFinal(job->state));
  RETURN_IF_ERROR(journal_status_ = journal_->Delete(*job));
  LogInfo(job->id, " is deleted");
  Erase(*job);
  return absl::OkStatus();
}

Job* JobBook::Find(const std::string& id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

Job* JobBook::FindRequest(const std::string& owner, const std::string& request_id) {
  const auto it = by_request_.find(RequestKey(owner, request_id));
  return it == by_request_.end() ? nullptr : it->second;
}

JobPage JobBook::List(const JobFilter& filter) const {
  JobPage page;
  size_t bytes = 0;
  auto it = filter.before > 0 ? jobs_.lower_bound(filter.before) : jobs_.end();
  while (it != jobs_.begin()) {
    --it;
    if (!Fits(*it->second, filter)) continue;
    bytes += BytesAbout(*it->second);
    if (page.jobs.size() == filter.most || (!page.jobs.empty() && bytes > filter.most_bytes)) {
      page.more = true;
      break;
    }
    page.jobs.push_back(Picture(*it->second));
  }
  return page;
}

size_t JobBook::num_open() const {
  return static_cast<size_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) { return !jobs::IsFinal(entry.second->state); }));
}

absl::Status JobBook::Move(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms,
                           const std::function<void(Job*)>& edit) {
  const absl::StatusOr<jobs::JobState> next = jobs::NextJobState(job->state, event);
  if (!next.ok()) {
    return rpc::MakeError(next.status().code(), v1::JOB_STATE, next.status().message(),
                          {{"field", "id"}, {"actual", std::string(jobs::JobStateName(job->state))}});
  }
  Job moved = *job;
  Enter(&moved, *next, reason, unix_ms);
  if (edit) edit(&moved);
  RETURN_IF_ERROR(Write(moved));
  *job = std::move(moved);
  unsaved_.erase(job->sequence);
  LogInfo(job->id, " is ", jobs::JobStateName(job->state), ": ", reason);
  Report(*job);
  return absl::OkStatus();
}

void JobBook::Happen(Job* job, jobs::JobEvent event, const std::string& reason, int64_t unix_ms) {
  const absl::StatusOr<jobs::JobState> next = jobs::NextJobState(job->state, event);
  SY_CHECK_OK(next.status());
  Enter(job, *next, reason, unix_ms);
  LogInfo(job->id, " is ", jobs::JobStateName(job->state), ": ", reason);
  if (const absl::Status saved = Save(job); !saved.ok()) {
    LogError("the journal of jobs cannot be written, nothing new starts until it can: ", saved.message());
  }
  Report(*job);
}

absl::Status JobBook::Save(Job* job) {
  absl::Status status = Write(*job);
  if (status.ok()) {
    unsaved_.erase(job->sequence);
  } else {
    unsaved_.insert(job->sequence);
  }
  return status;
}

void JobBook::Flush() {
  const std::set<int64_t> unsaved = unsaved_;
  for (const int64_t sequence : unsaved) {
    if (!Save(jobs_.at(sequence).get()).ok()) return;
  }
  // The last write that failed was a user's request, which was refused: writes a job to see whether the journal works
  // again.
  if (!journal_status_.ok() && !jobs_.empty()) static_cast<void>(Write(*jobs_.rbegin()->second));
}

void JobBook::Note(Job* job, const std::string& note) {
  if (job->note == note) return;
  job->note = note;
  Report(*job);
}

void JobBook::NoteUnwritten(Job* job) { Note(job, absl::StrCat("waits for the journal: ", journal_status_.message())); }

absl::StatusOr<int64_t> JobBook::Watch(Job* job, WatchFn watch) {
  if (watchers_.size() >= kMaxWatchers) {
    return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_STREAMS,
                                         absl::StrCat("open WatchJob calls: limit ", kMaxWatchers),
                                         {{"limit", absl::StrCat(kMaxWatchers)}}),
                          absl::Seconds(1));
  }
  watch(Picture(*job));
  watchers_[++last_watcher_] = {job->sequence, std::move(watch)};
  return last_watcher_;
}

void JobBook::Unwatch(int64_t watcher) { watchers_.erase(watcher); }

void JobBook::EndWatches() {
  for (const auto& [id, watcher] : std::exchange(watchers_, {})) watcher.watch(nullptr);
}

void JobBook::Report(const Job& job) {
  JobPtr picture;
  for (const auto& [id, watcher] : watchers_) {
    if (watcher.sequence != job.sequence) continue;
    if (picture == nullptr) picture = Picture(job);
    watcher.watch(picture);
  }
}

}  // namespace switchyard::server
