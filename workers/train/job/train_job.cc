#include "workers/train/job/train_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/lr_schedule.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

constexpr absl::Duration kLeaveLimit = absl::Seconds(5);
constexpr absl::Duration kSaveControl = absl::Seconds(1);  // between control points while ranks wait for a save

}  // namespace

TrainJob::TrainJob(TrainJobInput input, const Stream& stream, comm::Communicator* comm, TrainListener* listener)
    : context_(std::move(input), stream, comm, listener),
      input_(context_.input()),
      spec_(context_.spec()),
      comm_(comm),
      listener_(listener) {}

absl::Status TrainJob::RunToEnd() {
  context_.stream().pool().AwaitGate();
  RETURN_IF_ERROR(JobSetup(&context_, &job_).Run());
  const TrainerState& start = job_.start->state();
  step_ = saved_step_ = start.step;
  tokens_ = start.tokens;
  record_ = start.evaluations;
  stopped_ = job_.stopped();
  listener_->Started(step_, context_.warnings());
  if (stopped_ != jobs::StopKind::kNone) return absl::OkStatus();  // no step was done, so there is nothing to save
  absl::Status status = Train();
  if (!status.ok() && context_.agreed() && OutcomeOf(status) == jobs::TrainOutcome::kBlocked)
    status = SaveBlocked(status);
  return status;
}

jobs::TrainEnd TrainJob::Run() {
  absl::Status status = RunToEnd();
  if (!status.ok() && !context_.agreed()) {
    // Ends the wait of the other ranks for this one.
    if (comm_->world() > 1) comm_->Abort(status.message());
    return {OutcomeOf(status), std::move(status)};
  }
  // A rank that closes its connections first must not be taken for lost.
  if (comm::WorkOr last =
          comm_->Barrier({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + kLeaveLimit});
      last.ok()) {
    if (const absl::Status left = (*last)->Wait(); !left.ok()) LogWarn("leaving the job's group: ", left.message());
  }
  if (!status.ok()) return {OutcomeOf(status), std::move(status)};
  if (stopped_ != jobs::StopKind::kNone) return {jobs::TrainOutcome::kStopped, absl::OkStatus()};
  return {jobs::TrainOutcome::kFinished, absl::OkStatus(), early_stop_reason_};
}

// All ranks call it together, and draw the same conclusions from the same words.
absl::StatusOr<jobs::StopKind> TrainJob::Control(const absl::Status& mine) {
  RankWord word;
  word.stop = static_cast<int32_t>(context_.stop());
  word.saving = static_cast<int32_t>(job_.saver->phase());
  word.number = job_.saver->written_bytes();
  word.SetStatus(mine);
  if (mine.ok()) word.SetStatus(job_.saver->status());
  ASSIGN_OR_RETURN(std::vector<RankWord> words,
                   ExchangeWords(comm_, word, job_.saver->busy() ? input_.disk_limit : input_.step_limit));
  if (absl::Status error = FirstError(words); !error.ok()) {
    context_.set_agreed(true);
    return error;
  }
  ASSIGN_OR_RETURN(std::optional<SavedStep> saved, job_.saver->Advance(words));
  if (saved.has_value() && context_.leads()) listener_->Saved(*saved);
  int32_t stop = 0;
  int64_t written = 0;
  for (const RankWord& each : words) {
    stop = std::max(stop, each.stop);
    written += each.number;
  }
  if (job_.saver->busy() && written != noted_written_ && context_.notes().due()) {
    noted_written_ = written;
    context_.notes().Stage(
        absl::StrCat("saves step ", saved_step_, ": ", written >> 20, " of ", job_.saver->total_bytes() >> 20, " MiB"));
  }
  return static_cast<jobs::StopKind>(stop);
}

// Step · batch, but where a fork has other data or batches than its parent.
int64_t TrainJob::NextSample() const {
  const TrainerState& start = job_.start->state();
  return start.sample + (step_ - start.step) * spec_.batch_sequences;
}

absl::Status TrainJob::LoadStep(std::vector<TrainRows>* micro_batches) const {
  micro_batches->clear();
  const int64_t micro = context_.micro_batch_sequences();
  for (int64_t done = 0; done < context_.own_sequences(); done += micro) {
    const int64_t place = done * comm_->world() + comm_->rank() * micro, first = NextSample() + place;
    ASSIGN_OR_RETURN(micro_batches->emplace_back(), job_.data.training->Samples(first, micro));
    if (job_.references != nullptr) job_.references->Fill(*job_.data.training, &micro_batches->back());
    micro_batches->back().first_sequence = place;
  }
  return absl::OkStatus();
}

absl::Status TrainJob::RunStep(absl::Span<const TrainRows> micro_batches, double data_seconds) {
  SY_CHECK(!job_.saver->reads_parameters());
  const absl::Time start = MonotonicNow();
  jobs::LrSchedule schedule = spec_.optimizer.schedule;
  schedule.total_steps = spec_.steps;
  StepProgress progress;
  progress.learning_rate = jobs::LearningRate(schedule, step_);
  ASSIGN_OR_RETURN(progress.report,
                   job_.trainer->Step(micro_batches, progress.learning_rate, MonotonicNow() + input_.step_limit));
  ++step_;
  tokens_ += progress.report.tokens;
  ASSIGN_OR_RETURN(std::optional<jobs::PackingDecision> packed, job_.packing->AfterStep(progress.report));
  if (!context_.leads()) return absl::OkStatus();
  progress.step = step_;
  progress.tokens = tokens_;
  progress.data_seconds = data_seconds;
  progress.total_seconds = data_seconds + absl::ToDoubleSeconds(MonotonicNow() - start);
  progress.tokens_per_second = meter_.TokensPerSecond(progress.report.tokens, progress.total_seconds);
  progress.packing = job_.packing->packing();
  progress.packing_decided = packed.has_value();
  progress.total_steps = spec_.steps;
  progress.padding = 1 - static_cast<double>(progress.report.step_rows) /
                             static_cast<double>(spec_.batch_sequences * spec_.sequence_length);
  progress.skipped_steps = job_.trainer->skipped_steps();
  listener_->StepDone(progress);
  if (progress.report.skipped) ReportSkipped();
  if (packed.has_value()) context_.notes().Stage(packed->ToString());
  return absl::OkStatus();
}

// Reports the first at once, and later ones no more often than other notes.
void TrainJob::ReportSkipped() {
  const int64_t skipped = job_.trainer->skipped_steps();
  const std::string text = absl::StrCat("step ", step_, " is skipped: none of its tokens is a target (", skipped,
                                        " of ", step_, " steps so far)");
  if (skipped == 1) {
    context_.notes().Stage(text);
  } else {
    context_.notes().Note(text);
  }
}

absl::Status TrainJob::Train() {
  std::vector<TrainRows> micro_batches;
  for (;;) {
    const absl::Time start = MonotonicNow();
    const absl::Status loaded =
        OfData(step_ < spec_.steps ? LoadStep(&micro_batches) : absl::OkStatus(), /*were_right=*/true);
    const double data_seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
    ASSIGN_OR_RETURN(const jobs::StopKind stop, Control(loaded));
    if (stop != jobs::StopKind::kNone) {
      stopped_ = stop;
      if (stop == jobs::StopKind::kNow) return absl::OkStatus();
      if (step_ > saved_step_) RETURN_IF_ERROR(Save());
      return AwaitSave();
    }
    const bool last = step_ == spec_.steps;
    const bool due = last || (spec_.evaluate_every_steps > 0 && step_ % spec_.evaluate_every_steps == 0);
    if (!job_.data.evaluation.empty() && due && evaluated_ < step_) {
      ASSIGN_OR_RETURN(const bool ended, Evaluate());
      if (!ended) continue;
      ASSIGN_OR_RETURN(const bool over, DecideByEvaluations());
      if (stopped_ == jobs::StopKind::kNow) return absl::OkStatus();  // a save may go on that reads the parameters
      if (over) return AwaitSave();
    }
    if (last) return AwaitSave();
    RETURN_IF_ERROR(RunStep(micro_batches, data_seconds));
    if (step_ == spec_.steps || step_ % spec_.checkpoints.every_steps == 0) RETURN_IF_ERROR(Save());
  }
}

absl::StatusOr<bool> TrainJob::Evaluate() {
  jobs::EvaluationReport report = {.result = {.step = step_}};
  jobs::EvaluationResult& result = report.result;
  EvaluationSums all;
  for (const EvaluationData& set : job_.data.evaluation) {
    EvaluationSums sums;
    ASSIGN_OR_RETURN(const bool ended, EvaluateSet(set, &sums));
    if (!ended) return false;
    all.Add(sums);
    if (!set.name.empty()) result.sets.push_back({set.name, sums.Loss(), sums.tokens, sums.Preferences()});
  }
  result.loss = all.Loss();
  result.tokens = all.tokens;
  result.preferences = all.Preferences();
  evaluated_ = step_;
  record_before_ = record_;
  record_ = WithEvaluation(record_, step_, result.loss, spec_.early_stop.min_improvement);
  report.best_step = record_.best_step;
  report.best_loss = record_.best_loss;
  if (context_.leads()) listener_->Evaluated(report);
  return true;
}

absl::StatusOr<bool> TrainJob::EvaluateSet(const EvaluationData& set, EvaluationSums* sums) {
  const int64_t micro = context_.micro_batch_sequences();
  const int64_t windows = set.source->num_windows();
  const std::string of = job_.data.evaluation.size() > 1 ? absl::StrCat(" of ", set.name) : "";
  for (int64_t done = 0; done < windows; done += micro * comm_->world()) {
    // The last part of the set: some ranks may have nothing.
    const int64_t first = std::min(windows, done + comm_->rank() * micro);
    absl::StatusOr<TrainRows> rows = set.source->Samples(first, std::min(micro, windows - first));
    ASSIGN_OR_RETURN(const jobs::StopKind stop, Control(OfData(rows.status(), /*were_right=*/true)));
    if (stop != jobs::StopKind::kNone) return false;
    if (job_.references != nullptr) job_.references->Fill(*set.source, &*rows);
    ASSIGN_OR_RETURN(StepReport report,
                     job_.trainer->Evaluate(absl::MakeSpan(&*rows, 1), MonotonicNow() + input_.step_limit));
    sums->Add(report);
    context_.notes().Note(absl::StrCat("evaluation after step ", step_, ": ",
                                       std::min(windows, done + micro * comm_->world()), " of ", windows, " windows",
                                       of));
  }
  return true;
}

// The losses are the same on all ranks, so all decide alike.
absl::StatusOr<bool> TrainJob::DecideByEvaluations() {
  const bool over = step_ < spec_.steps && EndsEarly(record_, spec_.early_stop);
  const bool best = spec_.checkpoints.keep_best && record_.best_step == step_;
  if ((over || best) && step_ > saved_step_) RETURN_IF_ERROR(Save());
  if (!over) return false;
  early_stop_reason_ =
      absl::StrFormat("stopped early at step %d: %d evaluations in a row were no improvement", step_, record_.stale);
  if (spec_.early_stop.min_improvement > 0) {
    absl::StrAppendFormat(&early_stop_reason_, " by more than %g", spec_.early_stop.min_improvement);
  }
  absl::StrAppendFormat(&early_stop_reason_, "; the best has loss %.6g, of step %d", record_.best_loss,
                        record_.best_step);
  return true;
}

absl::Status TrainJob::Save() {
  RETURN_IF_ERROR(AwaitSave());
  if (stopped_ == jobs::StopKind::kNow) return absl::OkStatus();
  saved_step_ = step_;
  noted_written_ = 0;
  // The checkpoint of the best evaluation stays until one of a better one is complete; this may be that.
  const int64_t best = spec_.checkpoints.keep_best ? record_.best_step : 0;
  RETURN_IF_ERROR(job_.saver->Begin(context_.stream(), *job_.parameters, step_, best,
                                    EncodeTrainerState({.step = step_,
                                                        .tokens = tokens_,
                                                        .sample = NextSample(),
                                                        .packing = job_.packing->packing(),
                                                        .skipped = job_.trainer->skipped_steps(),
                                                        .evaluations = evaluated_ == step_ ? record_before_ : record_,
                                                        .shape = job_.shape})));
  return job_.saver->copied() ? absl::OkStatus() : AwaitSave(/*written=*/true);
}

absl::Status TrainJob::AwaitSave(bool written) {
  while (job_.saver->busy() && !(written && job_.saver->all_written())) {
    job_.saver->AwaitNews(kSaveControl);
    ASSIGN_OR_RETURN(const jobs::StopKind stop, Control(absl::OkStatus()));
    if (stop != jobs::StopKind::kNow) continue;
    stopped_ = stop;
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status TrainJob::SaveBlocked(absl::Status why) {
  context_.set_agreed(false);
  absl::Status saved = step_ > saved_step_ ? Save() : absl::OkStatus();
  if (saved.ok()) saved = AwaitSave();
  if (saved.ok()) {
    context_.set_agreed(true);
    return why;
  }
  LogWarn("job ", input_.job_id, ": step ", step_, " is not saved: ", saved.message());
  return why;  // if it is this rank's alone, not all ranks know it: the group ends
}

}  // namespace switchyard::train
