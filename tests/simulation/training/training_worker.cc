#include "tests/simulation/training/training_worker.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/link/training_assignment_codec.h"

namespace switchyard::simulation {

void TrainingWorker::Take(const v1::LinkResponse& message) {
  if (message.has_start_training()) {
    absl::StatusOr<jobs::TrainingAssignment> assignment = link::FromProto(message.start_training());
    if (!assignment.ok()) return world_.Violate(name(), " gets a bad assignment: ", assignment.status().message());
    Begin(*std::move(assignment));
  } else if (message.has_stop_training()) {
    const absl::StatusOr<jobs::StopKind> kind = link::FromProto(message.stop_training().kind());
    if (message.stop_training().epoch() == attempt_.epoch && kind.ok())
      stop_ = std::max(stop_, static_cast<int>(*kind));
  } else if (message.has_abort_group() && message.abort_group().training()) {
    if (message.abort_group().epoch() == attempt_.epoch)
      End(jobs::TrainOutcome::kLost, absl::CancelledError("it was told to"));
  }
}

void TrainingWorker::Begin(jobs::TrainingAssignment assignment) {
  world_.Require(attempt_.epoch == 0, name(), " gets an attempt while it runs another");
  attempt_ = std::move(assignment);
  ++turn_;
  stop_ = 0;
  world_.Note(name(), ": attempt ", attempt_.attempt, " as rank ", attempt_.rank, " of ", attempt_.world);
  After(world_.random().Skewed(absl::Milliseconds(5), absl::Milliseconds(400)) * slowness(), [this, turn = turn_] {
    if (turn == turn_) Meet();
  });
}

void TrainingWorker::Meet() {
  const uint64_t turn = turn_;
  const auto failed = [this](const absl::Status& status) {
    End(jobs::TrainOutcome::kLost, absl::UnavailableError(absl::StrCat("rendezvous: ", status.message())));
  };
  SetInStore(attempt_.store_token, absl::StrCat("rank ", attempt_.rank), [this, turn, failed](const absl::Status& set) {
    if (turn != turn_) return;
    if (!set.ok()) return failed(set);
    std::vector<std::string> keys;
    for (int rank = 0; rank < attempt_.world; ++rank) keys.push_back(absl::StrCat("rank ", rank));
    AwaitInStore(attempt_.store_token, keys, absl::Milliseconds(attempt_.form_deadline_ms),
                 [this, turn, failed](const absl::Status& found) {
                   if (turn != turn_) return;
                   if (!found.ok()) return failed(found);
                   Start();
                 });
  });
}

void TrainingWorker::Start() {
  const uint64_t turn = turn_;
  if (attempt_.rank == 0 && !shelf_.Claim(attempt_.job_id, attempt_.attempt)) {
    return End(jobs::TrainOutcome::kLost, absl::AbortedError("a newer attempt owns the job"));
  }
  fabric_ = fabrics_.Of(attempt_.store_token, attempt_.world);
  fabric_->Enter(attempt_.rank, this, &host(), [this, turn](const std::string& why) {
    if (turn == turn_) End(jobs::TrainOutcome::kLost, absl::UnavailableError(why));
  });
  fabric_->Arrive(attempt_.rank, 0, 0, [this, turn](int) {
    if (turn != turn_) return;
    step_ = saved_ = shelf_.step(attempt_.job_id);
    v1::LinkRequest message;
    message.mutable_training_started()->set_epoch(attempt_.epoch);
    message.mutable_training_started()->set_step(step_);
    Say(message);
    NextStep();
  });
}

void TrainingWorker::NextStep() {
  const uint64_t turn = turn_;
  if (step_ >= attempt_.spec.steps) {
    if (!Save()) return;
    return End(jobs::TrainOutcome::kFinished, absl::OkStatus());
  }
  After(world_.random().Between(absl::Milliseconds(5), absl::Milliseconds(60)) * slowness(), [this, turn] {
    if (turn != turn_) return;
    fabric_->Arrive(attempt_.rank, step_ + 1, stop_, [this, turn](int wish) {
      if (turn == turn_) StepDone(wish);
    });
  });
}

void TrainingWorker::StepDone(int wish) {
  ++step_;
  if (attempt_.rank == 0) {
    v1::LinkRequest message;
    message.mutable_training_step()->set_epoch(attempt_.epoch);
    *message.mutable_training_step()->mutable_progress() =
        link::ToProto(jobs::TrainProgress{.step = step_, .loss = 1, .tokens = step_ * 32});
    Say(message);
  }
  const bool due = step_ % attempt_.spec.checkpoints.every_steps == 0;
  if ((due || wish == static_cast<int>(jobs::StopKind::kSave)) && !Save()) return;
  if (wish != 0 && step_ < attempt_.spec.steps) return End(jobs::TrainOutcome::kStopped, absl::OkStatus());
  NextStep();
}

bool TrainingWorker::Save() {
  if (attempt_.rank != 0 || saved_ == step_) return true;
  if (disk_.state() != MemoryDisk::State::kGood) {
    End(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("no space left on device"));
    return false;
  }
  if (!shelf_.Save(attempt_.job_id, attempt_.attempt, step_)) {
    End(jobs::TrainOutcome::kLost, absl::AbortedError("a newer attempt owns the job"));
    return false;
  }
  saved_ = step_;
  v1::LinkRequest message;
  message.mutable_training_saved()->set_epoch(attempt_.epoch);
  *message.mutable_training_saved()->mutable_checkpoint() =
      link::ToProto(jobs::SavedCheckpoint{.step = step_, .folder = attempt_.job_id, .bytes = 1, .seconds = 0.1});
  Say(message);
  return true;
}

void TrainingWorker::End(jobs::TrainOutcome outcome, const absl::Status& status) {
  if (attempt_.epoch == 0) return;
  const int64_t epoch = attempt_.epoch;
  world_.Note(name(), ": attempt ", attempt_.attempt, " ends at step ", step_, ": ", static_cast<int>(outcome), " ",
              status.message());
  v1::LinkRequest message;
  *message.mutable_training_ended() = link::ToProto(jobs::TrainEnd{outcome, status}, epoch);
  const bool in_order = outcome == jobs::TrainOutcome::kFinished || outcome == jobs::TrainOutcome::kStopped;
  if (in_order) std::exchange(fabric_, nullptr)->Exit(attempt_.rank);
  Leave();
  Say(message);
}

void TrainingWorker::Leave() {
  ++turn_;
  if (fabric_ != nullptr) std::exchange(fabric_, nullptr)->Leave(attempt_.rank);
  attempt_ = {};
}

void TrainingWorker::EndSession() { Leave(); }

}  // namespace switchyard::simulation
