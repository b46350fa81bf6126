#include "server/jobs/run/run_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/jobs/checkpoint_names.h"

namespace switchyard::server {

void RunProgress::Start(int64_t step, const std::string& warnings) {
  if (job_->state != jobs::JobState::kPreparing) return;
  running_since_ = context_.host->Now();
  resumed_step_ = step;
  // A damaged checkpoint has cost steps: what was found after them is void, and will be found again.
  if (job_->best_evaluation.has_value() && job_->best_evaluation->step > step) job_->best_evaluation.reset();
  if (job_->best_checkpoint.has_value() && job_->best_checkpoint->step > step) job_->best_checkpoint.reset();
  context_.book->Happen(
      job_, jobs::JobEvent::kStart,
      absl::StrCat("attempt ", job_->attempt, step > 0 ? absl::StrCat(" goes on from step ", step) : " begins", " on ",
                   job_->spec.workers, " workers", warnings.empty() ? "" : "; ", warnings),
      context_.host->UnixMs());
  if (context_.sink != nullptr) context_.sink->OnStarted(*job_, step);
}

void RunProgress::OnStep(const jobs::TrainProgress& progress) {
  const absl::Time now = context_.host->Now();
  if (!has_steps()) {
    first_step_at_ = now;
    first_step_ = progress.step;
  } else if (progress.step > first_step_) {
    const double each = absl::ToDoubleSeconds(now - first_step_at_) / static_cast<double>(progress.step - first_step_);
    job_->seconds_left = each * static_cast<double>(std::max<int64_t>(StepsOf(*job_) - progress.step, 0));
  }
  job_->note =
      progress.skipped ? absl::StrCat("step ", progress.step, " was skipped: none of its tokens is a target") : "";
  if (job_->progress.has_value()) job_->most_tokens = std::max(job_->most_tokens, job_->progress->tokens);
  // The server does not know how many tokens a fork's parent had trained; the step has trained at most these.
  if (!job_->progress.has_value() && job_->origin.has_value()) {
    job_->most_tokens = progress.tokens - job_->spec.batch_sequences * job_->spec.sequence_length;
  }
  Count(job_->most_tokens, progress);
  if (progress.step > job_->best_step) {
    job_->best_step = progress.step;
    job_->losses = 0;
  }
  job_->progress = progress;
  unsaved_ = true;
  if (context_.sink != nullptr) context_.sink->OnStep(*job_, progress);
  context_.book->Report(*job_);
}

void RunProgress::Count(int64_t tokens_before, const jobs::TrainProgress& progress) {
  // A worker's invalid values must not decrease a counter.
  const auto positive = [](double value) { return value > 0 ? value : 0; };
  TrainingCounts& counts = *context_.counts;
  ++counts.steps;
  counts.tokens += std::max<int64_t>(progress.tokens - tokens_before, 0);
  counts.dropped_rows += std::max<int64_t>(progress.dropped_rows, 0);
  for (double jobs::StepSeconds::*part :
       {&jobs::StepSeconds::total, &jobs::StepSeconds::forward, &jobs::StepSeconds::backward,
        &jobs::StepSeconds::experts, &jobs::StepSeconds::all_to_all, &jobs::StepSeconds::all_reduce,
        &jobs::StepSeconds::optimizer, &jobs::StepSeconds::data}) {
    counts.seconds.*part += positive(progress.seconds.*part);
  }
}

void RunProgress::OnEvaluated(const jobs::EvaluationReport& report) {
  const jobs::EvaluationResult& result = report.result;
  job_->evaluation = result;
  if (report.best_step == 0) {
    // An evaluation alone.
  } else if (report.best_step == result.step) {
    job_->best_evaluation = result;
  } else if (!job_->best_evaluation.has_value() || job_->best_evaluation->step != report.best_step) {
    // This server has not seen it: all that the job's checkpoint says of it.
    job_->best_evaluation = jobs::EvaluationResult{.step = report.best_step, .loss = report.best_loss};
  }
  NoteBestCheckpoint();
  unsaved_ = true;
  if (context_.sink != nullptr) context_.sink->OnEvaluated(*job_, result);
  context_.book->Report(*job_);
}

void RunProgress::NoteBestCheckpoint() {
  if (!job_->spec.checkpoints.keep_best || !job_->best_evaluation.has_value()) return;
  const int64_t step = job_->best_evaluation->step;
  if (job_->best_checkpoint.has_value() && job_->best_checkpoint->step == step) return;
  if (job_->checkpoint.has_value() && job_->checkpoint->step == step) {
    job_->best_checkpoint = job_->checkpoint;
  } else if (step > 0 && step <= resumed_step_) {
    // An earlier server was killed before it had the report that this one was saved.
    job_->best_checkpoint =
        jobs::SavedCheckpoint{.step = step, .folder = absl::StrCat(job_->id, "/", jobs::StepFolder(step))};
  }
}

void RunProgress::OnSaved(jobs::SavedCheckpoint checkpoint) {
  if (!job_->checkpoint.has_value() || checkpoint.step > job_->checkpoint->step) job_->losses = 0;
  job_->checkpoint = std::move(checkpoint);
  NoteBestCheckpoint();
  ++context_.counts->checkpoints;
  job_->full_since_unix_ms = 0;
  saved_at_ = absl::InfinitePast();
  unsaved_ = true;
  Save();
  context_.book->Report(*job_);
}

void RunProgress::Save() {
  const absl::Time now = context_.host->Now();
  if (!unsaved_ || now - saved_at_ < context_.options->save_progress) return;
  saved_at_ = now;
  unsaved_ = false;
  job_->ran_ms = RanMs();
  if (const absl::Status saved = context_.book->Save(job_); !saved.ok()) LogWarn(job_->id, ": ", saved.message());
}

void RunProgress::Postpone(absl::Duration by, absl::Time now) {
  if (running_since_ < now) running_since_ = std::min(running_since_ + by, now);
}

void RunProgress::End() {
  if (running()) job_->ran_ms = RanMs();
}

int64_t RunProgress::RanMs() const {
  const absl::Time now = context_.host->Now();
  return ran_before_ms_ + (now > running_since_ ? absl::ToInt64Milliseconds(now - running_since_) : 0);
}

bool RunProgress::IsOverRuntime() const {
  const int64_t limit_ms = job_->spec.max_runtime_seconds * 1000;
  return limit_ms != 0 && running() && RanMs() >= limit_ms;
}

}  // namespace switchyard::server
