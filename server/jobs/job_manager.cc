#include "server/jobs/job_manager.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/job_folder.h"

namespace switchyard::server {
namespace {

constexpr int kMaxEarly = 1;  // jobs that pack their text before their turn, as the processor is others'
constexpr int kMaxAhead = 2;  // jobs that wait with packed text, which needs room on the disk

// Returns the error of a request that could not be journaled, and so was not carried out.
absl::Status JournalError(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DISK_FULL,
                          absl::StrCat("the journal of jobs: ", status.message(),
                                       "; make room beneath the checkpoint root, then try again"));
  }
  if (status.code() == absl::StatusCode::kFailedPrecondition)
    return status;  // an error of the job's state, not of the journal
  return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kUnavailable, v1::ENGINE_ERROR,
                                       absl::StrCat("the journal of jobs: ", status.message())),
                        absl::Seconds(1));
}

jobs::JobSpec AsSubmitted(const Job& job) {
  jobs::JobSpec spec = job.spec;
  if (job.submitted_workers != 0) spec.workers = job.submitted_workers;
  return spec;
}

bool HasSpec(const Job& job, jobs::JobSpec spec) {
  // A job from before sets had names.
  if (job.spec.evaluation_names.empty() && spec.evaluation_names == jobs::DefaultSetNames(spec.evaluation)) {
    spec.evaluation_names.clear();
  }
  return EncodeSpec(AsSubmitted(job)) == EncodeSpec(spec);
}

// Whether the job's model is in this folder of the checkpoint root.
bool UsesFolder(const jobs::JobSpec& spec, const std::string& folder) {
  return IsOfJob(jobs::ModelFolder(spec), folder);
}

absl::Status OtherJobError(const std::string& request_id, const Job& job) {
  return rpc::MakeError(absl::StatusCode::kAlreadyExists, v1::JOB_EXISTS,
                        absl::StrCat("request_id: ", Quote(request_id), " has made ", job.id, " of another spec",
                                     job.origin.has_value() ? absl::StrCat(", ", DescribeFork(*job.origin)) : ""),
                        {{"field", "request_id"}, {"actual", job.id}});
}

absl::Status TooManyJobs(absl::string_view which, size_t limit, absl::string_view advice) {
  return rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_JOBS,
                        absl::StrCat(which, ": limit ", limit, advice), {{"limit", absl::StrCat(limit)}});
}

absl::Status BadWorkers(int32_t workers, absl::string_view problem) {
  return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FIELD, problem,
                        {{"field", "workers"}, {"actual", absl::StrCat(workers)}});
}

}  // namespace

absl::Status NoSuchJob(const std::string& id) {
  return rpc::MakeError(absl::StatusCode::kNotFound, v1::JOB_NOT_FOUND, absl::StrCat("no job has the id ", Quote(id)),
                        {{"field", "id"}});
}

JobManager::JobManager(Options options, JobJournal* journal, TrainingHost* host, ProgressSink* sink)
    : options_(std::move(options)),
      host_(host),
      book_(journal),
      pools_{.alone = TrainerPool(options_.trainers),
             .serving = TrainerPool(
                 {.configured = options_.serving_workers, .tokens = options_.trainers.tokens, .serving = true})},
      retries_(&options_, host, &book_, &counts_),
      runs_({.options = &options_,
             .host = host,
             .book = &book_,
             .pools = &pools_,
             .retries = &retries_,
             .sink = sink,
             .counts = &counts_,
             .last_epoch = host->UnixMs() * 1000}) {}  // higher than any earlier server's

absl::Status JobManager::Start() {
  RETURN_IF_ERROR(book_.Load());
  for (const auto& [sequence, job] : book_.jobs()) {
    if (!jobs::NextJobState(job->state, jobs::JobEvent::kLose).ok()) continue;
    // The move counts, whether or not the disk accepts it.
    book_.Happen(job.get(), jobs::JobEvent::kLose, "its server has ended and was started again", host_->UnixMs());
  }
  return absl::OkStatus();
}

absl::StatusOr<Job*> JobManager::FindJob(const std::string& id) {
  if (Job* job = book_.Find(id); job != nullptr) return job;
  return NoSuchJob(id);
}

absl::StatusOr<JobPtr> JobManager::FindRequest(const std::string& request_id, const jobs::JobSpec& spec,
                                               const std::string& owner) {
  const Job* job = request_id.empty() ? nullptr : book_.FindRequest(owner, request_id);
  if (job == nullptr) return JobPtr();
  if (!job->origin.has_value() && HasSpec(*job, spec)) return JobBook::Picture(*job);
  return OtherJobError(request_id, *job);
}

absl::StatusOr<JobPtr> JobManager::FindFork(const ForkRequest& request, const std::string& owner) {
  const Job* job = request.request_id.empty() ? nullptr : book_.FindRequest(owner, request.request_id);
  if (job == nullptr) return JobPtr();
  // The parent may be deleted, resumed on other workers, or have newer checkpoints by now.
  if (job->origin.has_value() && job->fork_digest == request.digest) return JobBook::Picture(*job);
  return OtherJobError(request.request_id, *job);
}

absl::Status JobManager::CheckWorkers(const jobs::JobSpec& spec, const std::string& field) const {
  const TrainerPool& pool = pools_.Of(spec);
  if (pool.configured() == 0) {
    return rpc::MakeError(
        absl::StatusCode::kFailedPrecondition, v1::NO_TRAINING,
        spec.on_serving_workers
            ? "spec.on_serving_workers: this server's serving workers do not train (--train_on_serving)"
        : pools_.serving.configured() > 0
            ? "this server has no training workers (--local_train_workers); its serving ones train jobs "
              "with on_serving_workers"
            : "this server has no training workers (--local_train_workers)");
  }
  if (spec.workers <= pool.configured()) return absl::OkStatus();
  return rpc::MakeError(
      absl::StatusCode::kFailedPrecondition, v1::TOO_FEW_WORKERS,
      absl::StrCat(field, ": needs ", spec.workers, " ranks, ", pool.NumRegistered(), " alive, ", pool.configured(),
                   " configured", spec.on_serving_workers ? " to serve" : ""),
      {{"field", field}, {"limit", absl::StrCat(pool.configured())}, {"actual", absl::StrCat(spec.workers)}});
}

absl::StatusOr<JobManager::Submitted> JobManager::Submit(const std::string& request_id, const jobs::JobSpec& spec,
                                                         const std::string& owner) {
  ASSIGN_OR_RETURN(JobPtr before, FindRequest(request_id, spec, owner));
  if (before != nullptr) return Submitted{before, true};
  Job job;
  job.id = DrawId();
  job.request_id = request_id;
  job.owner = owner;
  job.spec = spec;
  return AddJob(std::move(job), "submitted");
}

absl::StatusOr<JobManager::Submitted> JobManager::Fork(const ForkRequest& request, const Job& parent,
                                                       const ForkedJob& forked, const std::string& owner) {
  ASSIGN_OR_RETURN(JobPtr before, FindFork(request, owner));
  if (before != nullptr) return Submitted{before, true};
  Job job;
  job.id = forked.id;
  job.request_id = request.request_id;
  job.owner = owner;
  job.spec = forked.spec;
  job.origin = forked.origin;
  // The checkpoint may be of an attempt that has begun meanwhile.
  if (const Job* now = book_.Find(parent.id); now != nullptr) job.origin->attempts = now->attempt;
  job.attempt = job.origin->attempts;
  job.best_step = forked.origin.step;
  job.checkpoint = forked.checkpoint;
  job.files_ready = forked.files_ready;
  job.fork_digest = request.digest;
  ASSIGN_OR_RETURN(const Submitted added, AddJob(std::move(job), DescribeFork(forked.origin)));
  ++counts_.forks;
  return added;
}

std::vector<std::string> JobManager::JobsOf(const std::string& owner) const {
  std::vector<std::string> ids;
  for (const auto& [sequence, job] : book_.jobs()) {
    if (job->owner == owner) ids.push_back(job->id);
  }
  return ids;
}

std::string JobManager::DrawId() {
  for (;;) {
    std::string id = absl::StrCat("job-", host_->DrawHex().substr(0, kJobIdDigits));
    if (book_.Find(id) == nullptr) return id;
  }
}

absl::Status JobManager::CheckNew(const jobs::JobSpec& spec) const {
  if (runs_.draining()) return ServerStopsError();
  if (const absl::Status status = jobs::Validate(spec); !status.ok()) {
    return rpc::MakeError(status.code(), v1::BAD_FIELD, status.message(), {{"field", "spec"}});
  }
  RETURN_IF_ERROR(CheckWorkers(spec));
  if (book_.num_open() >= options_.max_open_jobs) return TooManyJobs("open jobs", options_.max_open_jobs, "");
  if (book_.jobs().size() >= options_.max_jobs)
    return TooManyJobs("jobs", options_.max_jobs, "; delete old ones (switchyard train delete ID)");
  return absl::OkStatus();
}

absl::Status JobManager::CheckAdmission(const jobs::JobSpec& spec) const {
  RETURN_IF_ERROR(CheckNew(spec));
  // (Without a job nothing but a new one shows that the journal works again: JobBook::Flush.)
  if (book_.journal_status().ok() || book_.jobs().empty()) return absl::OkStatus();
  return JournalError(book_.journal_status());
}

absl::StatusOr<JobManager::Submitted> JobManager::AddJob(Job job, const std::string& reason) {
  RETURN_IF_ERROR(CheckNew(job.spec));
  // (Its files may have been checked just before.)
  for (const std::string& deleted : deleted_) {
    if (!UsesFolder(job.spec, deleted)) continue;
    return rpc::MakeError(absl::StatusCode::kNotFound, v1::BAD_FILE,
                          absl::StrCat("spec: its model is in the folder of ", deleted, ", which was deleted"),
                          {{"field", "spec"}, {"actual", deleted}});
  }
  job.created_unix_ms = host_->UnixMs();
  absl::StatusOr<Job*> added = book_.Add(std::move(job), reason);
  if (!added.ok()) return JournalError(added.status());
  const jobs::JobSpec& spec = (*added)->spec;
  LogInfo((*added)->id, " is ", reason, ": ",
          spec.steps > 0 ? absl::StrCat(spec.steps, " steps") : absl::StrCat(spec.epochs, " epochs"), " on ",
          spec.workers, " workers");
  return Submitted{JobBook::Picture(**added), false};
}

absl::StatusOr<JobPtr> JobManager::Get(const std::string& id) {
  ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  return JobBook::Picture(*job);
}

absl::StatusOr<JobPtr> JobManager::Ask(const std::string& id, jobs::JobEvent event, const std::string& reason,
                                       std::initializer_list<jobs::JobState> already,
                                       const std::function<void(Job*)>& edit) {
  ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  if (std::find(already.begin(), already.end(), job->state) != already.end()) return JobBook::Picture(*job);
  const auto requeue = [&](Job* moved) {
    moved->full_since_unix_ms = 0;
    if (event == jobs::JobEvent::kResume) moved->queued = book_.NextPlace();
    // A job that a user resumes has all its tries again.
    if (event == jobs::JobEvent::kResume) moved->losses = 0;
    if (event == jobs::JobEvent::kResume) moved->error = absl::OkStatus();
    if (edit) edit(moved);
  };
  if (const absl::Status moved = book_.Move(job, event, reason, host_->UnixMs(), requeue); !moved.ok()) {
    return JournalError(moved);
  }
  retries_.EndPause(*job);
  runs_.StopAsAsked(*job);
  return JobBook::Picture(*job);
}

absl::StatusOr<JobPtr> JobManager::Pause(const std::string& id) {
  return Ask(id, jobs::JobEvent::kPause, "pause was asked for", {jobs::JobState::kPausing, jobs::JobState::kPaused});
}

absl::StatusOr<jobs::JobSpec> JobManager::CheckOtherWorkers(const Job& job, int32_t workers) const {
  if (const absl::StatusOr<jobs::JobState> next = jobs::NextJobState(job.state, jobs::JobEvent::kResume); !next.ok()) {
    return rpc::MakeError(next.status().code(), v1::JOB_STATE,
                          absl::StrCat(next.status().message(), " on another number of workers: ", workers,
                                       " instead of ", job.spec.workers),
                          {{"field", "id"}, {"actual", std::string(jobs::JobStateName(job.state))}});
  }
  jobs::JobSpec spec = job.spec;
  spec.workers = workers;
  if (const absl::Status status = jobs::Validate(spec); !status.ok()) return BadWorkers(workers, status.message());
  // Workers would refuse the checkpoint as another job's, since experts would drop other rows.
  if (spec.capacity_factor != 0 && spec.micro_batch_sequences != 0) {
    return BadWorkers(
        workers, absl::StrCat("workers: ", workers, " instead of ", job.spec.workers,
                              " changes the rows that capacity_factor ", spec.capacity_factor,
                              " is of: micro_batch_sequences is ", spec.micro_batch_sequences, ", must be 0 for that"));
  }
  RETURN_IF_ERROR(CheckWorkers(spec, "workers"));
  return spec;
}

absl::StatusOr<JobPtr> JobManager::ResumeOn(const std::string& id, std::optional<int32_t> workers) {
  std::string reason = "resume was asked for";
  std::function<void(Job*)> edit;
  ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  if (workers.has_value() && *workers != job->spec.workers) {
    RETURN_IF_ERROR(CheckOtherWorkers(*job, *workers).status());
    absl::StrAppend(&reason, " on ", *workers, " workers instead of ", job->spec.workers);
    edit = [workers](Job* moved) {
      if (moved->submitted_workers == 0) moved->submitted_workers = moved->spec.workers;
      moved->spec.workers = *workers;
    };
  }
  return Ask(id, jobs::JobEvent::kResume, reason,
             {jobs::JobState::kPending, jobs::JobState::kPreparing, jobs::JobState::kRunning}, edit);
}

absl::StatusOr<JobPtr> JobManager::Cancel(const std::string& id) {
  return Ask(id, jobs::JobEvent::kCancel, "cancel was asked for",
             {jobs::JobState::kCancelling, jobs::JobState::kCancelled});
}

bool JobManager::BeginsFromOthers(const jobs::JobSpec& spec, const std::string& owner) const {
  return std::any_of(book_.jobs().begin(), book_.jobs().end(), [&](const auto& entry) {
    return entry.second->owner != owner && UsesFolder(spec, entry.second->id);
  });
}

absl::Status JobManager::Delete(const std::string& id) {
  ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  const auto refuse = [&](absl::string_view why) {
    const std::string state(jobs::JobStateName(job->state));
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::JOB_STATE, absl::StrCat(id, " is ", state, why),
                          {{"field", "id"}, {"actual", state}});
  };
  if (!jobs::IsFinal(job->state)) return refuse("; only a job that has ended can be deleted: cancel it first");
  for (const std::string& folder : options_.served) {
    if (IsOfJob(folder, id)) return refuse(absl::StrCat(", but this server serves ", folder));
  }
  for (const auto& [sequence, other] : book_.jobs()) {
    const bool ended = jobs::IsFinal(other->state), same_owner = other->owner == job->owner;
    const bool wants_base = !ended || (same_owner && other->spec.lora.rank > 0 && other->checkpoint.has_value());
    if (!wants_base || !UsesFolder(other->spec, id)) continue;
    const std::string name = same_owner ? other->id : "another job";
    return refuse(ended ? absl::StrCat(", but ", name, " has adapters of it: delete that one first")
                        : absl::StrCat(", but ", name, ", which has not ended, begins from its files"));
  }
  const absl::Status deleted = book_.Delete(job);
  if (!deleted.ok()) return JournalError(deleted);
  deleted_.insert(id);
  return absl::OkStatus();
}

void JobManager::FolderRemoved(const std::string& id) {
  // (Else the next server looks for the folder again.)
  if (const absl::Status status = book_.FolderRemoved(id); !status.ok()) LogWarn(id, ": ", status.message());
}

absl::StatusOr<int64_t> JobManager::Watch(const std::string& id, JobBook::WatchFn watch) {
  ASSIGN_OR_RETURN(Job* const job, FindJob(id));
  return book_.Watch(job, std::move(watch));
}

void JobManager::Tick() {
  runs_.Tick();
  book_.Flush();
  Admit();
}

void JobManager::Admit() {
  if (runs_.draining()) return;
  std::vector<Job*> waiting;
  for (const auto& [sequence, job] : book_.jobs()) {
    const bool packs = job->state == jobs::JobState::kPreparing && runs_.IsEarly(*job);
    if (job->state == jobs::JobState::kPending || packs) waiting.push_back(job.get());
  }
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) { return a->queued < b->queued; });
  if (!book_.clean()) {
    for (Job* job : waiting) book_.NoteUnwritten(job);
    return;
  }
  Room alone = {pools_.alone.NumIdle() - runs_.NumAwaited(/*on_serving_workers=*/false)};
  Room serving = {pools_.serving.NumIdle() - runs_.NumAwaited(/*on_serving_workers=*/true)};
  int ahead = 0;
  for (Job* job : waiting) {
    if (JobPreparation::HasText(*job) && !JobPreparation::IsNeeded(*job)) ++ahead;
    if (!Consider(job, job->spec.on_serving_workers ? &serving : &alone, ahead < kMaxAhead)) return;
  }
}

bool JobManager::Consider(Job* job, Room* room, bool may_pack) {
  const int wanted = job->spec.workers;
  const TrainerPool& pool = pools_.Of(job->spec);
  if (wanted > pool.configured()) {  // submitted to an earlier server with more workers
    book_.Note(job, absl::StrCat("needs ", wanted, " workers, this server has ", pool.configured(),
                                 job->spec.on_serving_workers ? " that serve and train" : ""));
    return true;
  }
  const bool has_turn = !room->held && wanted <= room->available;
  if (!has_turn && !room->held && !runs_.IsEarly(*job)) {
    book_.Note(job, absl::StrCat("waits for workers: ", std::max(room->available, 0), " of ", wanted, " are free"));
  }
  if (!has_turn) room->held = true;
  if (has_turn) room->available -= pool.Cost(wanted);
  if (runs_.IsEarly(*job)) return true;  // it keeps its place; its turn waits for its text
  if (retries_.Pauses(*job)) {
    if (has_turn) book_.Note(job, "pauses after a loss");
    return true;
  }
  if (has_turn) return Begin(job, /*early=*/false);
  if (may_pack && runs_.NumEarly() < kMaxEarly && JobPreparation::IsNeeded(*job)) return Begin(job, /*early=*/true);
  return true;
}

bool JobManager::Begin(Job* job, bool early) {
  retries_.EndPause(*job);
  const char* const why = early ? "its text is packed while it waits" : "it is its turn";
  if (!book_.Move(job, jobs::JobEvent::kAdmit, why, host_->UnixMs()).ok()) {
    book_.NoteUnwritten(job);
    return false;
  }
  runs_.Begin(job, early);
  return true;
}

void JobManager::End() {
  for (const auto& [id, trainer] : pools_.alone.trainers()) {
    trainer.client->Close(absl::UnavailableError("the server stops"));
  }
  book_.EndWatches();
}

const TrainingCounts& JobManager::counts() {
  counts_.jobs.fill(0);
  counts_.journal_ok = book_.journal_status().ok();
  for (const auto& [sequence, job] : book_.jobs()) ++counts_.jobs[static_cast<size_t>(job->state)];
  counts_.workers = pools_.alone.NumRegistered() + pools_.serving.NumRegistered();
  counts_.busy_workers = pools_.alone.NumBusy() + pools_.serving.NumBusy();
  runs_.FillSlots(&counts_);
  return counts_;
}

}  // namespace switchyard::server
