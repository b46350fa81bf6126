// Whether a job fits into a rank's memory, and what goes to a file where it does not.  Before anything is allocated.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/mib.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/rank_agreement.h"
#include "workers/train/train_job.h"
#include "workers/train/training_memory.h"

namespace switchyard {

// Ranks of one machine take from the same memory, at the same time.
absl::Status TrainJob::CountNeighbours() {
  RankWord word;
  word.SetText(input_.memory_domain);
  std::vector<RankWord> words;
  ASSIGN_OR_RETURN(words, ExchangeWords(comm_, word, input_.step_limit));
  if (input_.memory_domain.empty()) return absl::OkStatus();
  ranks_here_ = static_cast<int>(std::count_if(words.begin(), words.end(), [&word](const RankWord& each) {
    return absl::string_view(each.text) == absl::string_view(word.text);
  }));
  return absl::OkStatus();
}

OpenStateFileFn TrainJob::OffloadFile() const {
  if (!offloads_) return nullptr;
  if (input_.open_offload) return input_.open_offload;
  return [directory = input_.offload_dir](int64_t bytes) { return OpenStateFile(directory, bytes); };
}

// With so many replicas of every expert.
absl::Status TrainJob::CheckFits(int32_t packing) {
  const int64_t share = spec_.batch_sequences / comm_->world();
  const int64_t micro = spec_.micro_batch_sequences > 0 ? spec_.micro_batch_sequences : share;
  TrainingNeed need = {.dtype = dtype_,
                       .experts_per_layer = config_.num_experts / comm_->world() * packing,
                       .rows = micro * spec_.sequence_length,
                       .recompute = spec_.recompute};
  const int64_t available = AvailableMemory();
  const absl::Status without = CheckTrainingMemory(config_, need, available);
  if (spec_.offload != OffloadPolicy::kAlways) {
    if (without.ok()) return without;
    // Packed experts travel between ranks, which those in a file cannot.
    if (spec_.offload == OffloadPolicy::kNever || packing > 1) return Failed(without);
  }
  if (input_.offload_dir.empty()) {
    constexpr char kNoDirectory[] =
        "offload: this worker has no --train_offload_dir for masters and moments of experts";
    return Failed(without.ok() ? absl::FailedPreconditionError(kNoDirectory) : In(kNoDirectory, without));
  }
  need.offload = true;
  if (const absl::Status with = CheckTrainingMemory(config_, need, available); !with.ok()) return Failed(with);
  const auto bytes = static_cast<int64_t>(TrainingMemory(config_, need).offloaded);
  if (!input_.open_offload) RETURN_IF_ERROR(CheckStateRoom(input_.offload_dir, bytes, ranks_here_));
  offloads_ = true;
  Stage(absl::StrCat("keeps masters and moments of experts, ", Mib(bytes), ", in a file of ", input_.offload_dir));
  return absl::OkStatus();
}

}  // namespace switchyard
