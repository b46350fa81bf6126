// Whether a job fits into a rank's memory, before anything is allocated, and what goes to a file where it does not.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/mib.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/job/train_job.h"
#include "workers/train/packing/packing_journal.h"
#include "workers/train/step/train_outcome.h"
#include "workers/train/step/training_memory.h"

namespace switchyard {

namespace {

// Short, as a rank's word is; empty where the pool has no name.
std::string KeyOf(const MemoryPool& pool) { return pool.name.empty() ? "" : absl::StrCat(absl::Hex(Fnv1a(pool.name))); }

}  // namespace

// Ranks of one machine, or of one control group, take from the same memory, at the same time.
absl::Status TrainJob::CountNeighbours() {
  const MachineMemory memory = input_.memory();
  RankWord word;
  word.SetText(
      absl::StrJoin(memory.pools, " ", [](std::string* out, const MemoryPool& pool) { out->append(KeyOf(pool)); }));
  std::vector<RankWord> words;
  ASSIGN_OR_RETURN(words, ExchangeWords(comm_, word, input_.step_limit));
  for (const RankWord& each : words) {
    for (const absl::string_view key : absl::StrSplit(each.text, ' ', absl::SkipEmpty())) ++ranks_of_pool_[key];
  }
  ranks_here_ = RanksOf(memory.pools.front());
  return absl::OkStatus();
}

int TrainJob::RanksOf(const MemoryPool& pool) const {
  const auto found = ranks_of_pool_.find(KeyOf(pool));
  return found == ranks_of_pool_.end() ? 1 : found->second;
}

// This rank's share of what there is now.  Each of them has made promises of its own.
int64_t TrainJob::AvailableMemory() const {
  int64_t share = std::numeric_limits<int64_t>::max();
  for (const MemoryPool& pool : input_.memory().pools) share = std::min(share, pool.available_bytes / RanksOf(pool));
  return share - (input_.promised_memory ? input_.promised_memory() : 0);
}

OpenStateFileFn TrainJob::OffloadFile() const {
  if (spec_.offload == OffloadPolicy::kNever) return nullptr;
  if (input_.open_offload) return input_.open_offload;
  if (input_.offload_dir.empty()) return nullptr;
  return [directory = input_.offload_dir](int64_t bytes) { return OpenStateFile(directory, bytes); };
}

TrainingNeed TrainJob::NeedOf(int32_t packing, bool offload) const {
  const int64_t share = spec_.batch_sequences / comm_->world();
  const int64_t micro = spec_.micro_batch_sequences > 0 ? spec_.micro_batch_sequences : share;
  return {.dtype = dtype_,
          .experts_per_layer = config_.num_experts / comm_->world() * packing,
          .rows = micro * spec_.sequence_length,
          .recompute = spec_.recompute,
          .offload = offload};
}

absl::Status TrainJob::DoesNotFit(const TrainingNeed& need, int64_t available, const absl::Status& status) const {
  const MemoryChoices choices = {.micro_batch_sequences = need.rows / spec_.sequence_length,
                                 .offload = spec_.offload,
                                 .world = comm_->world(),
                                 .ranks_here = ranks_here_};
  return Failed(absl::Status(status.code(),
                             absl::StrCat(status.message(), "; ", MemoryRemedy(config_, need, choices, available))));
}

absl::StatusOr<bool> TrainJob::MustOffload(int32_t packing, int64_t available) const {
  const TrainingNeed in_memory = NeedOf(packing, false), in_file = NeedOf(packing, true);
  const absl::Status without = CheckTrainingMemory(config_, in_memory, available);
  const bool can = spec_.offload != OffloadPolicy::kNever && OffloadFile() != nullptr;
  if (spec_.offload != OffloadPolicy::kAlways) {
    if (without.ok()) return false;
    if (!can) return DoesNotFit(in_memory, available, without);
  } else if (!can) {
    return Failed(absl::FailedPreconditionError(
        "offload: always, but this worker has no --train_offload_dir for masters and moments of experts"));
  }
  if (const absl::Status with = CheckTrainingMemory(config_, in_file, available); !with.ok()) {
    return DoesNotFit(in_file, available, with);
  }
  return true;
}

int64_t TrainJob::OffloadedBytes(int32_t packing) const {
  return static_cast<int64_t>(TrainingMemory(config_, NeedOf(packing, true)).offloaded);
}

absl::Status TrainJob::CheckOffloadRoom(int64_t bytes) const {
  return input_.open_offload ? absl::OkStatus() : CheckStateRoom(input_.offload_dir, bytes, ranks_here_);
}

// Without packing, which comes to be decided later.
absl::Status TrainJob::CheckFits() {
  ASSIGN_OR_RETURN(offloads_, MustOffload(/*packing=*/1, AvailableMemory()));
  return offloads_ ? CheckOffloadRoom(OffloadedBytes(1)) : absl::OkStatus();
}

// A job that fits without packing does not fail for it: where a rank lacks room for what the journal comes to, it does
// not count.
absl::Status TrainJob::CheckPackingFits() {
  int32_t most = packing_->packing(), files = most;  // on the disk at a time
  for (const PackingDecision& each : journalled_) {
    if (each.step <= start_.step || each.to == each.from) continue;
    most = std::max(most, each.to);
    files = std::max(files, each.from + each.to);
  }
  if (most == 1) return absl::OkStatus();  // the same on all ranks
  const int64_t available = AvailableMemory();
  absl::StatusOr<bool> offloads = MustOffload(most, available);
  if (offloads.ok() && *offloads) {
    if (const absl::Status room = CheckOffloadRoom(OffloadedBytes(files)); !room.ok()) offloads = room;
  }
  const absl::Status fits = Agree(comm_, offloads.status(), input_.disk_limit);
  if (fits.ok()) {
    // What fits with more fits with less.
    if (packing_->packing() > 1) offloads_ = *MustOffload(packing_->packing(), available);
    return absl::OkStatus();
  }
  if (!comm_->status().ok()) return fits;
  PackAnew(absl::StrCat(kPackingJournalName, " does not count, as there is no room for its packing ", most, ": ",
                        fits.message()));
  return absl::OkStatus();
}

// Where it changes.
void TrainJob::TellOffload() {
  const int64_t bytes = parameters_->offload() == nullptr ? 0 : parameters_->offload()->counters().bytes;
  if (bytes == std::exchange(told_offload_, bytes)) return;
  Stage(bytes == 0
            ? "keeps masters and moments of experts in memory again"
            : absl::StrCat("keeps masters and moments of experts, ", Mib(bytes), ", in a file of ", input_.offload_dir,
                           IsInMemory(input_.offload_dir) ? ", which is tmpfs: they still take memory" : ""));
}

}  // namespace switchyard
