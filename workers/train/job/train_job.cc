#include "workers/train/job/train_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/thread_pool.h"
#include "workers/tensor/work_gate.h"
#include "workers/train/job/rank_agreement.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLeaveLimit = absl::Seconds(5);
constexpr absl::Duration kSaveControl = absl::Seconds(1);  // between control points while ranks wait for a save

DType DTypeOfJob(TrainDType dtype) {
  switch (dtype) {
    case TrainDType::kF32:
      return DType::kF32;
    case TrainDType::kBf16:
      return DType::kBf16;
    case TrainDType::kF64:
      return DType::kF64;
  }
  return DType::kF32;
}

}  // namespace

TrainJob::TrainJob(TrainJobInput input, const Stream& stream, Communicator* comm, TrainListener* listener)
    : input_(std::move(input)),
      spec_(input_.spec),
      stream_(stream),
      comm_(comm),
      listener_(listener),
      dtype_(DTypeOfJob(spec_.dtype)) {}

TrainJob::~TrainJob() = default;

void TrainJob::Stop(StopKind kind) {
  StopKind before = stop_.load();
  while (before < kind && !stop_.compare_exchange_weak(before, kind)) {
  }
}

void TrainJob::Stage(const std::string& text) {
  last_note_ = absl::Now();
  if (!leads()) return;
  LogInfo("job ", input_.job_id, ": ", text);
  listener_->Note(text);
}

void TrainJob::Note(const std::string& text) {
  if (absl::Now() - last_note_ >= input_.note_interval) Stage(text);
}

absl::Status TrainJob::AgreeOn(const absl::Status& mine) {
  const absl::Status agreed = Agree(comm_, mine, input_.disk_limit);
  agreed_ = !agreed.ok() && comm_->status().ok();
  return agreed;
}

absl::Status TrainJob::RunInside() {
  const InsideGate inside(stream_.pool().gate());
  RETURN_IF_ERROR(Prepare());
  listener_->Started(step_, warnings_);
  absl::Status status = Train();
  if (!status.ok() && agreed_ && OutcomeOf(status) == TrainOutcome::kBlocked) status = SaveBlocked(status);
  return status;
}

TrainEnd TrainJob::Run() {
  absl::Status status = RunInside();
  if (!status.ok() && !agreed_) {
    // The others wait for this rank.
    if (comm_->world() > 1) comm_->Abort(status.message());
    return {OutcomeOf(status), std::move(status)};
  }
  // Everybody has heard the last word, or nobody leaves for a while: who closes its connections first must not be taken
  // for lost.
  if (WorkOr last = comm_->Barrier({.comm_class = CommClass::kControl, .deadline = absl::Now() + kLeaveLimit});
      last.ok()) {
    if (const absl::Status left = (*last)->Wait(); !left.ok()) LogWarn("leaving the job's group: ", left.message());
  }
  if (!status.ok()) return {OutcomeOf(status), std::move(status)};
  return {stopped_ == StopKind::kNone ? TrainOutcome::kFinished : TrainOutcome::kStopped, absl::OkStatus()};
}

// All ranks pass it together, and draw the same conclusions from the same words.
absl::StatusOr<StopKind> TrainJob::Control(const absl::Status& mine) {
  RankWord word;
  word.stop = static_cast<int32_t>(stop_.load());
  word.saving = static_cast<int32_t>(saver_->phase());
  word.number = saver_->written_bytes();
  word.SetStatus(mine);
  if (mine.ok()) word.SetStatus(saver_->status());
  std::vector<RankWord> words;
  ASSIGN_OR_RETURN(words, ExchangeWords(comm_, word, saver_->busy() ? input_.disk_limit : input_.step_limit));
  if (absl::Status error = FirstError(words); !error.ok()) {
    agreed_ = true;
    return error;
  }
  std::optional<SavedStep> saved;
  ASSIGN_OR_RETURN(saved, saver_->Advance(words));
  if (saved.has_value() && leads()) listener_->Saved(*saved);
  int32_t stop = 0;
  int64_t written = 0;
  for (const RankWord& each : words) {
    stop = std::max(stop, each.stop);
    written += each.number;
  }
  if (saver_->busy() && written != noted_bytes_ && absl::Now() - last_note_ >= input_.note_interval) {
    noted_bytes_ = written;
    Stage(absl::StrCat("saves step ", saved_step_, ": ", written >> 20, " of ", saver_->total_bytes() >> 20, " MiB"));
  }
  return static_cast<StopKind>(stop);
}

absl::Status TrainJob::LoadStep(std::vector<TrainRows>* micro_batches) const {
  micro_batches->clear();
  const int64_t share = spec_.batch_sequences / comm_->world();
  const int64_t micro = spec_.micro_batch_sequences > 0 ? spec_.micro_batch_sequences : share;
  for (int64_t done = 0; done < share; done += micro) {
    const int64_t first = step_ * spec_.batch_sequences + done * comm_->world() + comm_->rank() * micro;
    ASSIGN_OR_RETURN(micro_batches->emplace_back(), data_->Samples(first, micro));
  }
  return absl::OkStatus();
}

absl::Status TrainJob::RunStep(absl::Span<const TrainRows> micro_batches, double data_seconds) {
  const absl::Time start = absl::Now();
  LrSchedule schedule = spec_.optimizer.schedule;
  schedule.total_steps = spec_.steps;
  StepProgress progress;
  progress.learning_rate = LearningRate(schedule, step_);
  ASSIGN_OR_RETURN(progress.report,
                   trainer_->Step(micro_batches, progress.learning_rate, absl::Now() + input_.step_limit));
  ++step_;
  tokens_ += progress.report.tokens;
  std::optional<PackingDecision> packed;
  ASSIGN_OR_RETURN(packed, Pack(progress.report));
  if (!leads()) return absl::OkStatus();
  progress.step = step_;
  progress.tokens = tokens_;
  progress.data_seconds = data_seconds;
  progress.total_seconds = data_seconds + absl::ToDoubleSeconds(absl::Now() - start);
  progress.tokens_per_second = meter_.TokensPerSecond(progress.report.tokens, progress.total_seconds);
  progress.packing = packer_->groups().packing();
  progress.packing_decided = packed.has_value();
  progress.skipped_steps = trainer_->skipped_steps();
  listener_->StepDone(progress);
  if (progress.report.skipped) TellSkipped();
  if (packed.has_value()) Stage(packed->ToString());
  return absl::OkStatus();
}

// The first at once, of many no more than others notes.
void TrainJob::TellSkipped() {
  const int64_t skipped = trainer_->skipped_steps();
  const std::string text = absl::StrCat("step ", step_, " is skipped: none of its tokens is a target (", skipped,
                                        " of ", step_, " steps so far)");
  if (skipped == 1) {
    Stage(text);
  } else {
    Note(text);
  }
}

absl::Status TrainJob::Train() {
  int64_t evaluated = 0;
  std::vector<TrainRows> micro_batches;
  for (;;) {
    const absl::Time start = absl::Now();
    const absl::Status loaded =
        OfData(step_ < spec_.steps ? LoadStep(&micro_batches) : absl::OkStatus(), /*were_right=*/true);
    const double data_seconds = absl::ToDoubleSeconds(absl::Now() - start);
    StopKind stop;
    ASSIGN_OR_RETURN(stop, Control(loaded));
    if (stop != StopKind::kNone) {
      stopped_ = stop;
      if (stop == StopKind::kNow) return absl::OkStatus();
      if (step_ > saved_step_) RETURN_IF_ERROR(Save());
      return AwaitSave();
    }
    const bool last = step_ == spec_.steps;
    const bool due = last || (spec_.evaluate_every_steps > 0 && step_ % spec_.evaluate_every_steps == 0);
    if (evaluation_ != nullptr && due && evaluated < step_) {
      bool ended = false;
      ASSIGN_OR_RETURN(ended, Evaluate());
      if (!ended) continue;
      evaluated = step_;
    }
    if (last) return AwaitSave();
    RETURN_IF_ERROR(RunStep(micro_batches, data_seconds));
    if (step_ == spec_.steps || step_ % spec_.checkpoints.every_steps == 0) RETURN_IF_ERROR(Save());
  }
}

absl::StatusOr<bool> TrainJob::Evaluate() {
  const int64_t share = spec_.batch_sequences / comm_->world();
  const int64_t micro = spec_.micro_batch_sequences > 0 ? spec_.micro_batch_sequences : share;
  const int64_t windows = evaluation_->num_windows();
  double loss = 0;
  int64_t tokens = 0;
  for (int64_t done = 0; done < windows; done += micro * comm_->world()) {
    // The last part of the set: some ranks may have nothing.
    const int64_t first = std::min(windows, done + comm_->rank() * micro);
    absl::StatusOr<TrainRows> rows = evaluation_->Samples(first, std::min(micro, windows - first));
    StopKind stop;
    ASSIGN_OR_RETURN(stop, Control(OfData(rows.status(), /*were_right=*/true)));
    if (stop != StopKind::kNone) return false;
    StepReport report;
    ASSIGN_OR_RETURN(report, trainer_->Evaluate(absl::MakeSpan(&*rows, 1), absl::Now() + input_.step_limit));
    loss += report.loss * static_cast<double>(report.tokens);
    tokens += report.tokens;
    Note(absl::StrCat("evaluation after step ", step_, ": ", std::min(windows, done + micro * comm_->world()), " of ",
                      windows, " windows"));
  }
  // (Some are, since the data has targets.)
  if (leads()) listener_->Evaluated(step_, loss / static_cast<double>(tokens), tokens);
  return true;
}

absl::Status TrainJob::Save() {
  RETURN_IF_ERROR(AwaitSave());
  if (stopped_ == StopKind::kNow) return absl::OkStatus();
  saved_step_ = step_;
  noted_bytes_ = 0;
  RETURN_IF_ERROR(saver_->Begin(stream_, *parameters_, step_,
                                EncodeTrainerState({.step = step_,
                                                    .tokens = tokens_,
                                                    .sample = step_ * spec_.batch_sequences,
                                                    .packing = packer_->groups().packing(),
                                                    .skipped = trainer_->skipped_steps(),
                                                    .shape = ShapeOf(spec_, config_text_, data_names_)})));
  return saver_->copied() ? absl::OkStatus() : AwaitSave(/*written=*/true);
}

absl::Status TrainJob::AwaitSave(bool written) {
  while (saver_->busy() && !(written && saver_->all_written())) {
    saver_->AwaitNews(kSaveControl);
    StopKind stop;
    ASSIGN_OR_RETURN(stop, Control(absl::OkStatus()));
    if (stop != StopKind::kNow) continue;
    stopped_ = stop;
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status TrainJob::SaveBlocked(absl::Status why) {
  agreed_ = false;
  absl::Status saved = step_ > saved_step_ ? Save() : absl::OkStatus();
  if (saved.ok()) saved = AwaitSave();
  if (saved.ok()) {
    agreed_ = true;
    return why;
  }
  LogWarn("job ", input_.job_id, ": step ", step_, " is not saved: ", saved.message());
  return why;  // not agreed upon, if it is this rank's alone: the group ends
}

}  // namespace switchyard
