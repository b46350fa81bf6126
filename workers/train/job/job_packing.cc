#include "workers/train/job/job_packing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/packing/packing_journal.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {

absl::Status JobPacking::Find() {
  PackAnew("");
  if (!jobs::TriesPackings(context_.spec().communication) || jobs::MostPacking(context_.comm()->world()) == 1) {
    return absl::OkStatus();
  }
  adjusts_ = true;
  absl::StatusOr<std::string> text = std::string();
  if (context_.leads()) text = ReadPackingJournal(checkpoints_);
  ASSIGN_OR_RETURN(text, context_.AgreeOnText(text));
  RETURN_IF_ERROR(context_.AgreeOn(Replay(*text)));
  return CheckFits();
}

// Decisions up to the checkpoint are adopted; later ones are repeated at their steps.
absl::Status JobPacking::Replay(absl::string_view text) {
  const TrainerState& start = start_.state();
  ASSIGN_OR_RETURN(PackingJournal journal, DecodePackingJournal(text));
  const absl::Status replayed = controller_->Replay(journal.decisions, start.step);
  if (absl::IsFailedPrecondition(replayed)) {  // other ranks
    PackAnew(absl::StrCat(kPackingJournalName, " does not count: ", replayed.message()));
    return absl::OkStatus();
  }
  if (!replayed.ok()) return absl::Status(replayed.code(), absl::StrCat(kPackingJournalName, ": ", replayed.message()));
  if (controller_->packing() != start.packing) {  // of ranks that trained before others did
    PackAnew(absl::StrCat(kPackingJournalName, " does not count: it says packing ", controller_->packing(), " where ",
                          start_.folder(), " was saved with packing ", start.packing));
    return absl::OkStatus();
  }
  journalled_ = std::move(journal.decisions);
  return absl::OkStatus();
}

// why: the reason that the journal is not used.
void JobPacking::PackAnew(const std::string& why) {
  jobs::PackingOptions options = context_.input().packing;
  options.world = context_.comm()->world();
  options.begin = jobs::FirstPacking(context_.spec().communication);
  options.most = std::min(options.most, jobs::kMostPacking);
  controller_.emplace(options);
  controller_->Replay({}, start_.state().step).IgnoreError();  // an empty journal has no errors
  journalled_.clear();
  if (why.empty()) return;
  renews_journal_ = true;
  context_.Warn(absl::StrCat(
      why, "; how experts are packed is decided anew, so what follows need not be to the bit what it would have been"));
}

// If a rank lacks room for the journal's packing, the journal is not used: no job fails because of packing.
absl::Status JobPacking::CheckFits() {
  const int32_t first = controller_->packing();
  int32_t most = first;
  std::vector<int32_t> files = {first};  // packings whose files are on the disk at a time
  for (const jobs::PackingDecision& each : journalled_) {
    if (each.step <= start_.state().step || each.to == each.from) continue;
    most = std::max(most, each.to);
    if (each.from + each.to > std::accumulate(files.begin(), files.end(), 0)) files = {each.from, each.to};
  }
  if (most == 1) return absl::OkStatus();  // the same on all ranks
  const absl::StatusOr<bool> offloads = fit_.CheckPacked(most, files, first);
  const absl::Status fits = Agree(context_.comm(), offloads.status(), context_.input().disk_limit);
  if (fits.ok()) {
    fit_.set_offloads(*offloads);
    return absl::OkStatus();
  }
  if (!context_.comm()->status().ok()) return fits;
  PackAnew(absl::StrCat(kPackingJournalName, " does not count, as there is no room for its packing ", most, ": ",
                        fits.message()));
  return absl::OkStatus();
}

absl::Status JobPacking::MakePacker(Trainer* trainer, Parameters* parameters) {
  parameters_ = parameters;
  ExpertPackerOptions options;
  options.adjusts = adjusts_;
  options.available_bytes = [this] { return fit_.Available(); };
  options.open_offload = fit_.OffloadFile();
  options.offloads = context_.spec().offload == jobs::OffloadPolicy::kAlways;
  options.journal = [this](const jobs::PackingDecision& decision) { return Journal(decision); };
  if (context_.input().packing_times) {
    options.times = [this, trainer](const StepReport& report) {
      return context_.input().packing_times(trainer->steps(), report);
    };
  }
  ASSIGN_OR_RETURN(packer_, ExpertPacker::Create(trainer, parameters, context_.comm(), *std::move(controller_),
                                                 std::move(options), MonotonicNow() + context_.input().disk_limit));
  return absl::OkStatus();
}

absl::Status JobPacking::OpenJournal() {
  if (!renews_journal_ || !context_.leads()) return absl::OkStatus();
  return LostIfNot(WritePackingJournal(checkpoints_, {.attempt = context_.input().attempt}));
}

// Rank 0 writes; when this returns, the decision is on the disk.
absl::Status JobPacking::Journal(const jobs::PackingDecision& decision) {
  journalled_.push_back(decision);
  absl::Status written;
  if (context_.leads()) {
    written =
        LostIfNot(WritePackingJournal(checkpoints_, {.attempt = context_.input().attempt, .decisions = journalled_}));
  }
  return Agree(context_.comm(), written, context_.input().disk_limit);
}

absl::StatusOr<std::optional<jobs::PackingDecision>> JobPacking::AfterStep(const StepReport& report) {
  absl::StatusOr<std::optional<jobs::PackingDecision>> decision =
      packer_->AfterStep(report, MonotonicNow() + context_.input().step_limit);
  // An error that all ranks have does not end the group.
  context_.SetAgreed(decision.status());
  if (decision.ok() && decision->has_value()) fit_.ReportOffload(*parameters_);
  return decision;
}

}  // namespace switchyard::train
