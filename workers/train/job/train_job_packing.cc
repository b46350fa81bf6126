// What a job in mode full does beside its steps: packing of its experts, as packing.log says or as it comes to be
// decided.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/job/train_job.h"
#include "workers/train/packing/packing_journal.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard {
namespace {

absl::Status LostIfNot(const absl::Status& status) { return status.ok() ? status : Lost(status); }

}  // namespace

// Rank 0 reads, so that all have the same text.
absl::Status TrainJob::FindPacking() {
  PackAnew("");
  if (spec_.communication.mode != CommMode::kFull || MostPacking(comm_->world()) == 1) return absl::OkStatus();
  packs_ = true;
  absl::StatusOr<std::string> text = std::string();
  if (leads()) text = ReadPackingJournal(checkpoints_.get());
  text = FromLeader(comm_, text, input_.disk_limit);
  agreed_ = !text.ok() && comm_->status().ok();
  RETURN_IF_ERROR(text.status());
  RETURN_IF_ERROR(AgreeOn(ReplayPacking(*text)));
  return CheckPackingFits();
}

// What was decided up to the checkpoint counts; what was decided behind it comes again.
absl::Status TrainJob::ReplayPacking(absl::string_view text) {
  PackingJournal journal;
  ASSIGN_OR_RETURN(journal, DecodePackingJournal(text));
  const absl::Status replayed = packing_->Replay(journal.decisions, start_.step);
  if (absl::IsFailedPrecondition(replayed)) {  // other ranks
    PackAnew(absl::StrCat(kPackingJournalName, " does not count: ", replayed.message()));
    return absl::OkStatus();
  }
  if (!replayed.ok()) return absl::Status(replayed.code(), absl::StrCat(kPackingJournalName, ": ", replayed.message()));
  if (packing_->packing() != start_.packing) {  // of ranks that trained before others did
    PackAnew(absl::StrCat(kPackingJournalName, " does not count: it says packing ", packing_->packing(), " where ",
                          start_folder_, " was saved with packing ", start_.packing));
    return absl::OkStatus();
  }
  journalled_ = std::move(journal.decisions);
  return absl::OkStatus();
}

// why: of a journal that does not count.
void TrainJob::PackAnew(const std::string& why) {
  PackingOptions options = input_.packing;
  options.world = comm_->world();
  options.most = std::min(options.most, kMostPacking);
  packing_.emplace(options);
  packing_->Replay({}, start_.step).IgnoreError();  // nothing to be wrong with
  journalled_.clear();
  if (why.empty()) return;
  renews_journal_ = true;
  warnings_.push_back(absl::StrCat(
      why, "; how experts are packed is decided anew, so what follows need not be to the bit what it would have been"));
}

// Collective, of the groups that packing has.
absl::Status TrainJob::MakePacker() {
  ExpertPackerOptions options;
  options.adjusts = packs_;
  options.available_bytes = [this] { return AvailableMemory(); };
  options.open_offload = OffloadFile();
  options.offloads = spec_.offload == OffloadPolicy::kAlways;
  options.journal = [this](const PackingDecision& decision) { return Journal(decision); };
  if (input_.packing_times) {
    options.times = [this](const StepReport& report) { return input_.packing_times(trainer_->steps(), report); };
  }
  ASSIGN_OR_RETURN(packer_, ExpertPacker::Create(trainer_.get(), parameters_.get(), comm_, *std::move(packing_),
                                                 std::move(options), absl::Now() + input_.disk_limit));
  return absl::OkStatus();
}

// Behind the saver, which knows that no later attempt has saved; the folder's lock is this attempt's since before the
// journal was read.
absl::Status TrainJob::OpenPackingJournal() {
  if (!renews_journal_ || !leads()) return absl::OkStatus();
  return LostIfNot(WritePackingJournal(checkpoints_.get(), {.attempt = input_.attempt}));
}

// Rank 0 writes; who comes back knows that it is on the disk.
absl::Status TrainJob::Journal(const PackingDecision& decision) {
  journalled_.push_back(decision);
  absl::Status written;
  if (leads()) {
    written = LostIfNot(WritePackingJournal(checkpoints_.get(), {.attempt = input_.attempt, .decisions = journalled_}));
  }
  return Agree(comm_, written, input_.disk_limit);
}

absl::StatusOr<std::optional<PackingDecision>> TrainJob::Pack(const StepReport& report) {
  absl::StatusOr<std::optional<PackingDecision>> decision = packer_->AfterStep(report, absl::Now() + input_.step_limit);
  // What all ranks have leaves the group standing.
  agreed_ = !decision.ok() && comm_->status().ok();
  if (decision.ok() && decision->has_value()) TellOffload();
  return decision;
}

}  // namespace switchyard
