#include "workers/train/job/setup/job_start.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/train/job/setup/job_data.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

constexpr int kMostLooks = 3;
constexpr absl::Duration kLockRetry = absl::Milliseconds(50);

}  // namespace

absl::Status JobStart::Lock() {
  const absl::Time end = MonotonicNow() + context_.input().lock_patience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<checkpoint::File>> lock =
        checkpoint::LockCheckpoints(checkpoints_, context_.Holder());
    if (lock.ok()) {
      lock_ = *std::move(lock);
      return absl::OkStatus();
    }
    if (!absl::IsFailedPrecondition(lock.status())) return lock.status();
    // The holder is an attempt that is about to end.
    if (MonotonicNow() > end || !context_.comm()->status().ok()) return Lost(lock.status());
    absl::SleepFor(kLockRetry);
  }
}

// An older checkpoint costs steps, and a disk may fail for a moment: only a checkpoint that stays unreadable is
// rejected.
absl::StatusOr<checkpoint::FoundCheckpoint> JobStart::Look() {
  for (int look = 1;; ++look) {
    context_.notes().StartCount();
    absl::StatusOr<checkpoint::FoundCheckpoint> found = checkpoint::FindCheckpoint(
        checkpoints_, [this](int64_t bytes) { return context_.NoteRead("checks checkpoints", bytes); });
    const bool unread = found.ok() ? found->unread : absl::IsUnavailable(found.status());
    if (!unread || look == kMostLooks) return found;
    context_.notes().Stage(absl::StrCat("looks again for a checkpoint: ", found.ok()
                                                                              ? absl::StrJoin(found->rejected, "; ")
                                                                              : std::string(found.status().message())));
    absl::SleepFor(context_.input().read_pause);
  }
}

absl::Status JobStart::Find() {
  absl::StatusOr<std::string> folder = std::string();
  if (context_.leads()) {
    context_.notes().Stage("looks for a checkpoint");
    absl::StatusOr<checkpoint::FoundCheckpoint> found = absl::UnknownError("");
    if (const absl::Status locked = Lock(); locked.ok()) {
      found = Look();
    } else {
      found = locked;
    }
    if (found.ok()) {
      folder = found->folder;
      for (const std::string& rejected : found->rejected) {
        context_.Warn(absl::StrCat("a damaged checkpoint was passed over: ", rejected));
      }
    } else if (!absl::IsNotFound(found.status())) {
      folder = found.status();
    } else if (const auto& origin = context_.input().origin; origin.has_value()) {
      folder =
          absl::FailedPreconditionError(absl::StrCat("the job is a fork of ", origin->job, " at step ", origin->step,
                                                     ", and its folder has no checkpoint: it was removed"));
    }
  }
  ASSIGN_OR_RETURN(folder_, context_.AgreeOnText(folder));
  return absl::OkStatus();
}

absl::Status JobStart::Read(const JobShape& shape) {
  if (folder_.empty()) return absl::OkStatus();
  const absl::Status status = In(folder_, ReadFiles(shape));
  // The checkpoint was whole a moment ago.
  return absl::IsDataLoss(status) ? Lost(status) : status;
}

absl::Status JobStart::ReadFiles(const JobShape& shape) {
  ASSIGN_OR_RETURN(manifest_, checkpoint::OpenCheckpoint(checkpoints_, folder_));
  ASSIGN_OR_RETURN(
      std::string text,
      checkpoint::ReadWholeFile(checkpoints_, absl::StrCat(folder_, "/", kTrainerStateName), kMaxTrainerStateBytes));
  ASSIGN_OR_RETURN(state_, DecodeTrainerState(text));
  RETURN_IF_ERROR(CheckState(shape));
  const std::optional<jobs::ForkOrigin>& origin = context_.input().origin;
  if (origin.has_value() && state_.step == origin->step) {
    if (origin->other_data) state_.sample = 0;
    state_.sample += origin->skipped_sequences;
    state_.evaluations = {};  // those were the parent's
  }
  return absl::OkStatus();
}

absl::Status JobStart::CheckState(const JobShape& shape) const {
  const std::optional<jobs::ForkOrigin>& origin = context_.input().origin;
  // (The base was right when the job, or its parent, began.)
  const auto base_of = [](const JobShape& of) {
    const auto found = of.find(kBaseWeights);
    return found == of.end() ? std::string() : found->second;
  };
  const bool were_right = context_.had_data() || base_of(state_.shape) != base_of(shape);
  if (origin.has_value() && state_.step == origin->step) {
    RETURN_IF_ERROR(
        OfData(CompareShapes(FixedByFork(state_.shape, origin->other_data), FixedByFork(shape, origin->other_data)),
               were_right));
  } else {
    // A job's spec keeps all but its workers, so only files can differ.
    RETURN_IF_ERROR(OfData(CompareShapes(state_.shape, shape), were_right));
  }
  // A fork may have batches of another size than its parent, or have passed some over.
  const bool in_place = origin.has_value() || state_.sample == state_.step * context_.spec().batch_sequences;
  if (state_.step == manifest_.step && in_place) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": step ", state_.step, " and sample ",
                                                 state_.sample, " in a checkpoint of step ", manifest_.step));
}

}  // namespace switchyard::train
