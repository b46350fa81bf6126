// The jobs that are under way: what their workers tell, and how their attempts end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "server/jobs/job_manager.h"

namespace switchyard {
namespace {

int64_t ToMs(absl::Duration duration) { return absl::ToInt64Milliseconds(duration); }

// What a job that goes on no more leaves behind.
std::string Kept(const Job& job) {
  const int64_t done = job.progress.has_value() ? job.progress->step : 0;
  const int64_t saved = job.checkpoint.has_value() ? job.checkpoint->step : 0;
  if (done == 0 && saved == 0) return "it has done no step";
  if (saved >= done) return absl::StrCat("saved at step ", saved);
  if (saved + 1 == done) return absl::StrCat("step ", done, " is not saved");
  return absl::StrCat("steps ", saved + 1, " to ", done, " are not saved");
}

}  // namespace

void JobManager::Tick() {
  const absl::Time now = host_->Now();
  WatchSlices();
  const auto has_unread = [this](const WorkerInfo& info) { return host_->HasUnread(info); };
  for (const WorkerId id : pool_.Silent(now, has_unread)) Fence(pool_.trainers().at(id), "silent for too long");
  std::vector<int64_t> under_way;
  for (const auto& [sequence, run] : runs_) under_way.push_back(sequence);
  for (const int64_t sequence : under_way) {
    Run* run = &runs_.at(sequence);
    if (run->attempt == nullptr) {
      TryStart(run);
      continue;
    }
    const std::vector<TrainingWorker> given_up = run->attempt->CheckTime(now);
    if (!given_up.empty()) {
      GiveUp(run, given_up);
      continue;  // the run is over, and away
    }
    CheckRuntime(run);
    SaveProgress(run);
    ConcludeIfOver(run);
  }
  book_.Flush();
  Admit();
}

void JobManager::Fence(TrainingWorker trainer, const std::string& why) {
  LogWarn("training worker ", trainer.id, " (pid ", trainer.info.pid, ") is fenced: ", why);
  trainer.client->Close(absl::DeadlineExceededError(why));
  host_->KillWorker(trainer.info.local_index, trainer.info.pid);
  OnTrainerLost(trainer.id, why);
}

void JobManager::Obey(Run* run) {
  const bool cancel = run->job->state == JobState::kCancelling;
  if (run->packing) return host_->CancelPrepare(run->job->id);
  if (run->attempt == nullptr) {
    book_.Happen(run->job, JobEvent::kStopped, "it had no workers yet", host_->UnixMs());
    return EndRun(run);
  }
  // Before its first step there is nothing to save.
  if (!run->attempt->all_started()) {
    run->attempt->Abort(absl::CancelledError(cancel ? "the job is cancelled" : "the job is paused"), host_->Now());
  } else {
    cancel ? run->attempt->Cancel(host_->Now()) : run->attempt->Stop(StopKind::kSave, host_->Now());
  }
}

JobManager::Run* JobManager::OfEpoch(int64_t epoch) {
  for (auto& [sequence, run] : runs_) {
    if (run.attempt != nullptr && run.attempt->epoch() == epoch) return &run;
  }
  return nullptr;
}

JobManager::Run* JobManager::Heard(WorkerId id, int64_t epoch) {
  Run* run = OfEpoch(epoch);
  if (run == nullptr || !run->attempt->OnWord(id, host_->Now())) return nullptr;
  BeginRunning(run);
  return run;
}

void JobManager::OnTrainingStarted(WorkerId id, int64_t epoch, int64_t step, std::vector<std::string> warnings) {
  Run* run = OfEpoch(epoch);
  if (run == nullptr) return;
  for (const std::string& warning : warnings) LogWarn(run->job->id, ": ", warning);
  if (!warnings.empty()) run->warnings = absl::StrJoin(warnings, "; ");
  run->attempt->OnStarted(id, step, host_->Now());
  if (run->attempt->all_started()) BeginRunning(run);
}

// The first time that all ranks are known to have started.
void JobManager::BeginRunning(Run* run) {
  Job* job = run->job;
  if (job->state != JobState::kPreparing) return;
  const int64_t step = run->attempt->first_step();
  run->running_since = host_->Now();
  book_.Happen(job, JobEvent::kStart,
               absl::StrCat("attempt ", job->attempt, step > 0 ? absl::StrCat(" goes on from step ", step) : " begins",
                            " on ", job->spec.workers, " workers", run->warnings.empty() ? "" : "; ", run->warnings),
               host_->UnixMs());
  if (sink_ != nullptr) sink_->OnStarted(*job, step);
}

void JobManager::OnTrainingStep(WorkerId id, int64_t epoch, TrainProgress progress) {
  Run* run = Heard(id, epoch);
  if (run == nullptr) return;
  Job* job = run->job;
  const absl::Time now = host_->Now();
  if (run->first_step_at == absl::InfinitePast()) {
    run->first_step_at = now;
    run->first_step = progress.step;
  } else if (progress.step > run->first_step) {
    const double each =
        absl::ToDoubleSeconds(now - run->first_step_at) / static_cast<double>(progress.step - run->first_step);
    job->seconds_left = each * static_cast<double>(std::max<int64_t>(job->spec.steps - progress.step, 0));
  }
  job->note =
      progress.skipped ? absl::StrCat("step ", progress.step, " was skipped: none of its tokens is a target") : "";
  if (job->progress.has_value()) job->most_tokens = std::max(job->most_tokens, job->progress->tokens);
  CountStep(job->most_tokens, progress);
  if (progress.step > job->best_step) {
    job->best_step = progress.step;
    job->losses = 0;
  }
  job->progress = progress;
  run->unsaved_progress = true;
  if (sink_ != nullptr) sink_->OnStep(*job, progress);
  book_.Tell(*job);
}

void JobManager::CountStep(int64_t tokens_before, const TrainProgress& progress) {
  // A worker's nonsense must not make a counter fall.
  const auto positive = [](double value) { return value > 0 ? value : 0; };
  ++census_.steps;
  census_.tokens += std::max<int64_t>(progress.tokens - tokens_before, 0);
  census_.dropped_rows += std::max<int64_t>(progress.dropped_rows, 0);
  for (double StepSeconds::*part :
       {&StepSeconds::total, &StepSeconds::forward, &StepSeconds::backward, &StepSeconds::experts,
        &StepSeconds::all_to_all, &StepSeconds::all_reduce, &StepSeconds::optimizer, &StepSeconds::data}) {
    census_.seconds.*part += positive(progress.seconds.*part);
  }
}

void JobManager::OnTrainingEvaluated(WorkerId id, int64_t epoch, EvaluationResult result) {
  Run* run = Heard(id, epoch);
  if (run == nullptr) return;
  run->job->evaluation = result;
  run->unsaved_progress = true;
  if (sink_ != nullptr) sink_->OnEvaluated(*run->job, result);
  book_.Tell(*run->job);
}

void JobManager::OnTrainingSaved(WorkerId id, int64_t epoch, SavedCheckpoint checkpoint) {
  Run* run = Heard(id, epoch);
  if (run == nullptr) return;
  if (!run->job->checkpoint.has_value() || checkpoint.step > run->job->checkpoint->step) run->job->losses = 0;
  run->job->checkpoint = std::move(checkpoint);
  ++census_.checkpoints;
  run->job->full_since_unix_ms = 0;
  run->saved_at = absl::InfinitePast();
  run->unsaved_progress = true;
  SaveProgress(run);
  book_.Tell(*run->job);
}

void JobManager::OnTrainingNote(WorkerId id, int64_t epoch, std::string text) {
  Run* run = OfEpoch(epoch);
  if (run == nullptr || !run->attempt->OnNote(id, host_->Now())) return;
  Note(run->job, text);
}

void JobManager::SaveProgress(Run* run) {
  const absl::Time now = host_->Now();
  if (!run->unsaved_progress || now - run->saved_at < options_.save_progress) return;
  run->saved_at = now;
  run->unsaved_progress = false;
  run->job->ran_ms = run->ran_before_ms + (now > run->running_since ? ToMs(now - run->running_since) : 0);
  if (const absl::Status saved = book_.Save(run->job); !saved.ok()) LogWarn(run->job->id, ": ", saved.message());
}

void JobManager::CheckRuntime(Run* run) {
  const int64_t limit_ms = run->job->spec.max_runtime_seconds * 1000;
  const absl::Time now = host_->Now();
  if (limit_ms == 0 || run->over_runtime || run->job->state != JobState::kRunning || now < run->running_since) return;
  if (run->ran_before_ms + ToMs(now - run->running_since) < limit_ms) return;
  run->over_runtime = true;
  Note(run->job, "max_runtime_seconds: stops with a checkpoint");
  run->attempt->Stop(StopKind::kSave, now);
}

void JobManager::OnTrainingEnded(WorkerId id, int64_t epoch, TrainEnd end) {
  Run* run = OfEpoch(epoch);
  if (run == nullptr) return serving_.OnEnded(id);
  run->attempt->OnEnded(id, std::move(end), host_->Now());
  ConcludeIfOver(run);
}

void JobManager::OnTrainerLost(WorkerId id, std::string reason) {
  std::optional<TrainingWorker> trainer = pool_.Remove(id);
  if (!trainer.has_value()) trainer = serving_.Remove(id);
  if (!trainer.has_value()) return;
  const std::string end = host_->EndOf(trainer->info.local_index, trainer->info.pid);
  if (!end.empty()) reason = absl::StrCat("process ended with ", end);
  LogWarn("training worker ", id, " (pid ", trainer->info.pid, ") is lost: ", reason);
  for (auto& [sequence, run] : runs_) {
    if (run.attempt == nullptr) continue;
    const std::vector<WorkerId> ids = run.attempt->member_ids();
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) continue;
    run.attempt->OnLost(id, reason, host_->Now());
    return ConcludeIfOver(&run);
  }
}

void JobManager::ConcludeIfOver(Run* run) {
  if (run->attempt->over()) Conclude(run, run->attempt->Verdict());
}

void JobManager::Conclude(Run* run, TrainEnd end) {
  Job* job = run->job;
  const absl::Time now = host_->Now();
  for (const WorkerId id : run->attempt->member_ids()) PoolOf(job->spec).Release(id);
  host_->CloseStore(run->store_token);
  run->attempt.reset();
  const bool ran = run->running_since < absl::InfiniteFuture();
  if (ran) job->ran_ms = run->ran_before_ms + ToMs(now - run->running_since);
  const std::string message(end.status.message());
  const bool cancelled = job->state == JobState::kCancelling;
  const bool pausing = job->state == JobState::kPausing;
  if (end.outcome == TrainOutcome::kFinished) {
    BeginAndFinish(job);
  } else if (cancelled) {
    // Also where its checkpoint could not be saved: nobody waits for it any more.
    const bool stopped = end.outcome == TrainOutcome::kStopped;
    book_.Happen(job, stopped ? JobEvent::kStopped : JobEvent::kLose,
                 absl::StrCat(stopped ? "its workers have stopped" : absl::StrCat("its workers have ended: ", message),
                              "; ", Kept(*job)),
                 host_->UnixMs());
  } else if (end.outcome == TrainOutcome::kFailed) {
    if (SaysNotFinite(end.status)) ++census_.not_finite;
    Fail(job, end.status);
  } else if (end.outcome == TrainOutcome::kBlocked) {
    Block(job, MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED, message));
  } else if (pausing) {
    const bool stopped = end.outcome == TrainOutcome::kStopped;
    book_.Happen(job, stopped ? JobEvent::kStopped : JobEvent::kLose,
                 stopped ? "its workers have stopped" : absl::StrCat("its workers have ended: ", message),
                 host_->UnixMs());
  } else if (run->over_runtime) {
    Fail(job, absl::DeadlineExceededError(absl::StrCat("max_runtime_seconds: ran ", job->ran_ms / 1000, " s of ",
                                                       job->spec.max_runtime_seconds)));
  } else if (draining_) {
    book_.Happen(job, JobEvent::kLose, "the server stops", host_->UnixMs());
  } else {
    Lose(run, end.status);
  }
  if (ran && sink_ != nullptr) sink_->OnEnded(*job);
  EndRun(run);
}

// All steps may have been done before this attempt.
void JobManager::BeginAndFinish(Job* job) {
  if (job->state == JobState::kPreparing) {
    book_.Happen(job, JobEvent::kStart, "all ranks have started", host_->UnixMs());
  }
  book_.Happen(job, JobEvent::kFinish, "all steps are done", host_->UnixMs());
}

void JobManager::Lose(Run* run, const absl::Status& why) {
  Job* job = run->job;
  ++census_.losses;
  // A full disk says nothing of the job: it waits until there is room again, for a while by itself.
  const bool full = why.code() == absl::StatusCode::kResourceExhausted;
  if (full) {
    const int64_t now = host_->UnixMs();
    // (A clock may have been set back.)
    if (job->full_since_unix_ms == 0 || job->full_since_unix_ms > now) job->full_since_unix_ms = now;
    if (now - job->full_since_unix_ms >= absl::ToInt64Milliseconds(options_.full_disk)) {
      job->full_since_unix_ms = 0;
      return Block(job, MakeError(absl::StatusCode::kFailedPrecondition, v1::DISK_FULL, why.message()));
    }
  } else {
    ++job->losses;
  }
  if (job->losses >= options_.max_losses) {
    return Fail(job, absl::Status(why.code(), absl::StrCat("lost ", job->losses,
                                                           " times without getting ahead; at last: ", why.message())));
  }
  const absl::Duration doubled = options_.first_pause * (1 << std::clamp(job->losses - 1, 0, 20));
  const absl::Duration pause = full ? options_.longest_pause : std::min(doubled, options_.longest_pause);
  not_before_[job->sequence] = host_->Now() + pause;
  book_.Happen(job, JobEvent::kLose,
               absl::StrCat("lost, tries again in ", absl::FormatDuration(pause), ": ", why.message()),
               host_->UnixMs());
}

void JobManager::Fail(Job* job, const absl::Status& why) {
  job->error = why;
  book_.Happen(job, JobEvent::kFail, std::string(why.message()), host_->UnixMs());
}

void JobManager::Block(Job* job, const absl::Status& error) {
  ++census_.blocks;
  job->error = error;
  book_.Happen(job, JobEvent::kBlock, absl::StrCat(v1::ErrorReason_Name(ReasonOf(error)), ": ", error.message()),
               host_->UnixMs());
}

void JobManager::EndRun(Run* run) { runs_.erase(run->job->sequence); }

}  // namespace switchyard
