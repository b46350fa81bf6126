#include "server/jobs/run/job_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "server/jobs/fork/fork_spec.h"
#include "server/jobs/run/job_retries.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kJournalPause = absl::Seconds(1);
constexpr size_t kMostKeptWarnings = 16;  // that are journaled

// Says in words which steps an ended job has saved.
std::string Kept(const Job& job) {
  const int64_t done = job.progress.has_value() ? job.progress->step : 0;
  const int64_t saved = job.checkpoint.has_value() ? job.checkpoint->step : 0;
  if (done == 0 && saved == 0) return "it has done no step";
  if (saved >= done) return absl::StrCat("saved at step ", saved);
  if (saved + 1 == done) return absl::StrCat("step ", done, " is not saved");
  return absl::StrCat("steps ", saved + 1, " to ", done, " are not saved");
}

// Whether another attempt would fail in the same way.
bool IsFault(const absl::Status& status) {
  constexpr absl::StatusCode kFaults[] = {absl::StatusCode::kInvalidArgument,    absl::StatusCode::kNotFound,
                                          absl::StatusCode::kFailedPrecondition, absl::StatusCode::kPermissionDenied,
                                          absl::StatusCode::kOutOfRange,         absl::StatusCode::kUnimplemented};
  return rpc::ReasonOf(status) == v1::TEXT_LIMIT ||
         std::find(std::begin(kFaults), std::end(kFaults), status.code()) != std::end(kFaults);
}

// Moves the job to the state that follows its attempt.
void MoveOn(const RunContext& context, Job* job, const jobs::TrainEnd& end, bool over_runtime, bool draining) {
  const auto happen = [&](jobs::JobEvent event, const std::string& reason) {
    context.book->Happen(job, event, reason, context.host->UnixMs());
  };
  const std::string message(end.status.message());
  const bool cancelled = job->state == jobs::JobState::kCancelling;
  const bool pausing = job->state == jobs::JobState::kPausing;
  const bool stopped = end.outcome == jobs::TrainOutcome::kStopped;
  const std::string how = stopped ? "its workers have stopped" : absl::StrCat("its workers have ended: ", message);
  const jobs::JobEvent stop = stopped ? jobs::JobEvent::kStopped : jobs::JobEvent::kLose;
  if (end.outcome == jobs::TrainOutcome::kFinished) {
    // All steps may have been done before this attempt.
    if (job->state == jobs::JobState::kPreparing) happen(jobs::JobEvent::kStart, "all ranks have started");
    happen(jobs::JobEvent::kFinish, end.note.empty() ? "all steps are done" : end.note);
  } else if (cancelled) {
    // Even if the checkpoint could not be saved, a cancelled job is over.
    happen(stop, absl::StrCat(how, "; ", Kept(*job)));
  } else if (end.outcome == jobs::TrainOutcome::kFailed) {
    if (jobs::SaysNotFinite(end.status)) ++context.counts->not_finite;
    context.retries->Fail(job, end.status);
  } else if (end.outcome == jobs::TrainOutcome::kBlocked) {
    context.retries->Block(job, rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED, message));
  } else if (pausing) {
    happen(stop, how);
  } else if (over_runtime) {
    context.retries->Fail(job, absl::DeadlineExceededError(absl::StrCat("max_runtime_seconds: ran ", job->ran_ms / 1000,
                                                                        " s of ", job->spec.max_runtime_seconds)));
  } else if (draining) {
    happen(jobs::JobEvent::kLose, "the server stops");
  } else {
    context.retries->Lose(job, end.status);
  }
}

}  // namespace

void JobRun::EndAs(jobs::JobEvent event, const std::string& reason) {
  context_.book->Happen(job_, event, reason, context_.host->UnixMs());
  over_ = true;
}

void JobRun::Prepare() {
  if (preparation_.StartNext()) return;
  if (early_) return EndAs(jobs::JobEvent::kLose, "its text is packed");
  TryStart();
}

void JobRun::OnPrepared(const absl::StatusOr<PackedData>& packed) {
  if (!preparation_.packing()) return;
  preparation_.End();
  if (job_->state != jobs::JobState::kPreparing)
    return EndAs(jobs::JobEvent::kStopped, "stopped while its data was made ready");
  if (draining_) return EndAs(jobs::JobEvent::kLose, "the server stops");
  const absl::Status status = packed.ok() ? preparation_.Check(*packed) : packed.status();
  if (status.ok()) {
    ++job_->files_ready;
    if (const absl::Status saved = context_.book->Save(job_); !saved.ok()) LogWarn(saved.message());
    return Prepare();
  }
  // The file existed when the job was submitted.
  if (absl::IsNotFound(status) || rpc::ReasonOf(status) == v1::DATASET_CHANGED) {
    context_.retries->Block(
        job_, rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED, status.message()));
  } else if (IsFault(status)) {
    context_.retries->Fail(job_, status);
  } else {
    context_.retries->Lose(job_, status);
  }
  over_ = true;
}

std::vector<TrainingWorker> JobRun::Tick(absl::Time now) {
  if (attempt_ == nullptr) {
    TryStart();
    return {};
  }
  std::vector<TrainingWorker> given_up = attempt_->CheckTime(now);
  if (!given_up.empty()) return given_up;
  if (!over_runtime_ && job_->state == jobs::JobState::kRunning && progress_.IsOverRuntime()) {
    over_runtime_ = true;
    Note("max_runtime_seconds: stops with a checkpoint");
    attempt_->Stop(jobs::StopKind::kSave, now);
  }
  progress_.Save();
  ConcludeIfOver();
  return {};
}

void JobRun::TryStart() {
  const absl::Time now = context_.host->Now();
  if (preparation_.packing() || job_->state != jobs::JobState::kPreparing || now < retry_at_) return;
  if (const int idle = context_.pools->Of(job_->spec).NumIdle(); idle < job_->spec.workers) {
    return Note(absl::StrCat("waits for workers: ", idle, " of ", job_->spec.workers, " are free"));
  }
  // An attempt's number is journaled before a worker receives it, so that no later server uses it again.
  ++job_->attempt;
  if (const absl::Status saved = context_.book->Save(job_); !saved.ok()) {
    --job_->attempt;
    retry_at_ = now + kJournalPause;
    return context_.book->NoteUnwritten(job_);
  }
  StartAttempt();
}

void JobRun::StartAttempt() {
  store_token_ = context_.host->DrawHex();
  context_.host->OpenStore(store_token_);
  attempt_ = std::make_unique<Attempt>(++context_.last_epoch, context_.pools->Of(job_->spec).Take(job_->spec.workers),
                                       context_.options->limits, context_.host->Now());
  jobs::TrainingAssignment assignment;
  assignment.attempt = job_->attempt;
  assignment.job_id = job_->id;
  assignment.spec = job_->spec;
  assignment.origin = job_->origin;
  assignment.data = JobPreparation::Training(job_->spec);
  assignment.evaluation = JobPreparation::Evaluation(job_->spec);
  assignment.store_token = store_token_;
  assignment.form_deadline_ms = context_.options->form_deadline_ms;
  assignment.encrypt_links = context_.options->encrypt_links;
  attempt_->Start(std::move(assignment));
  ++context_.counts->attempts;
  LogInfo(job_->id, " starts: attempt ", job_->attempt, ", epoch ", attempt_->epoch());
  Note(absl::StrCat("attempt ", job_->attempt, ": its workers load the model"));
}

void JobRun::StopAsAsked() {
  const bool cancel = job_->state == jobs::JobState::kCancelling;
  StopIn(jobs::JobEvent::kStopped, "it had no workers yet", cancel ? "the job is cancelled" : "the job is paused",
         cancel);
}

void JobRun::Drain() {
  draining_ = true;
  StopIn(jobs::JobEvent::kLose, "the server stops", "the server stops", /*cancel=*/false);
}

void JobRun::StopIn(jobs::JobEvent event, const std::string& without_workers, const std::string& aborted, bool cancel) {
  const absl::Time now = context_.host->Now();
  if (preparation_.packing()) {
    preparation_.Cancel();
  } else if (attempt_ == nullptr) {
    EndAs(event, without_workers);
  } else if (!attempt_->all_started()) {  // before its first step there is nothing to save
    attempt_->Abort(absl::CancelledError(aborted), now);
  } else if (cancel) {
    attempt_->Cancel(now);
  } else {
    attempt_->Stop(jobs::StopKind::kSave, now);
  }
}

void JobRun::Postpone(absl::Duration by, absl::Time now) {
  attempt_->Postpone(by);
  progress_.Postpone(by, now);
}

// Several ranks may say the same.
void JobRun::KeepWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    LogWarn(job_->id, ": ", warning);
    const bool is_new = std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end();
    if (is_new && warnings_.size() < kMostKeptWarnings) warnings_.push_back(warning);
  }
}

void JobRun::Receive(WorkerId id, TrainingReport report) {
  const absl::Time now = context_.host->Now();
  if (const auto* started = std::get_if<TrainingStarted>(&report)) {
    KeepWarnings(started->warnings);
    attempt_->OnStarted(id, started->step, now);
    if (attempt_->all_started()) progress_.Start(attempt_->first_step(), absl::StrJoin(warnings_, "; "));
  } else if (auto* end = std::get_if<jobs::TrainEnd>(&report)) {
    attempt_->OnEnded(id, std::move(*end), now);
    ConcludeIfOver();
  } else if (const auto* note = std::get_if<std::string>(&report)) {
    if (attempt_->OnWord(id, /*is_note=*/true, now)) Note(*note);
  } else if (attempt_->OnWord(id, /*is_note=*/false, now)) {
    progress_.Start(attempt_->first_step(), absl::StrJoin(warnings_, "; "));
    if (const auto* step = std::get_if<jobs::TrainProgress>(&report)) progress_.OnStep(*step);
    if (const auto* evaluation = std::get_if<jobs::EvaluationReport>(&report)) progress_.OnEvaluated(*evaluation);
    if (auto* checkpoint = std::get_if<jobs::SavedCheckpoint>(&report)) progress_.OnSaved(std::move(*checkpoint));
  }
}

void JobRun::OnLost(WorkerId id, const std::string& reason) {
  attempt_->OnLost(id, reason, context_.host->Now());
  ConcludeIfOver();
}

bool JobRun::HasWorker(WorkerId id) const {
  if (attempt_ == nullptr) return false;
  const std::vector<WorkerId> ids = attempt_->member_ids();
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void JobRun::ConcludeIfOver() {
  if (!attempt_->over()) return;
  jobs::TrainEnd end = attempt_->Verdict();
  if (end.outcome == jobs::TrainOutcome::kFailed && jobs::SaysNotFinite(end.status)) {
    const int64_t done = progress_.has_steps() ? job_->progress->step : attempt_->first_step();
    end.status = absl::Status(
        end.status.code(),
        absl::StrCat(end.status.message(), WayOutOfNotFinite(*job_, done, context_.host->CheckpointsOf(job_->id))));
  }
  for (const WorkerId id : attempt_->member_ids()) context_.pools->Of(job_->spec).Release(id);
  context_.host->CloseStore(store_token_);
  attempt_.reset();
  progress_.End();
  MoveOn(context_, job_, end, over_runtime_, draining_);
  if (progress_.running() && context_.sink != nullptr) context_.sink->OnEnded(*job_);
  over_ = true;
}

}  // namespace switchyard::server
