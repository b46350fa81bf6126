#include "workers/train/job/setup/memory_fit.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/reduce/sparse_embedding.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {

namespace {

// Short, to fit a rank's word; empty if the pool has no name.
std::string KeyOf(const MemoryPool& pool) { return pool.name.empty() ? "" : absl::StrCat(absl::Hex(Fnv1a(pool.name))); }

absl::Status DoesNotFit(const model::ModelConfig& config, const jobs::JobSpec& spec, const RankShare& share,
                        const TrainingNeed& need, int64_t available, const absl::Status& status) {
  const MemoryChoices choices = {.micro_batch_sequences = MicroBatchSequences(spec, share.world),
                                 .offload = spec.offload,
                                 .world = share.world,
                                 .ranks_here = share.ranks_here};
  // (Advice about experts is of one replica each.)
  const int32_t packing = jobs::FirstPacking(spec.communication);
  const std::string fewer =
      packing == 1 ? ""
                   : absl::StrCat("; with a communication.expert_packing below ", packing, " each has fewer experts");
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; ", MemoryRemedy(config, need, choices, available), fewer));
}

}  // namespace

TrainingNeed NeedOf(const model::ModelConfig& config, const jobs::JobSpec& spec, const RankShare& share,
                    int32_t packing, bool offload) {
  const int64_t holders = share.world / packing;  // ranks that divide the experts, the first ones with one more
  const int64_t step_tokens = spec.batch_sequences * spec.sequence_length;
  const bool gathers = share.world > 1 && spec.lora.rank == 0 && GathersEmbedding(step_tokens, config.vocab_size);
  return {.dtype = DTypeOfJob(spec.dtype),
          .experts_per_layer = (config.num_experts + holders - 1) / holders,
          .rows = MicroBatchSequences(spec, share.world) * spec.sequence_length,
          .world = static_cast<int>(holders),
          .recompute = spec.recompute,
          .restore = spec.restore,
          .offload = offload,
          .frozen = share.frozen,
          .dense_shards = spec.zero == 1 && spec.lora.rank == 0 ? share.world : 1,
          .full_ranks = config.num_experts % holders,
          .gathered_rows = gathers ? GatheredRows(step_tokens, share.world) : 0};
}

absl::StatusOr<bool> MustOffload(const model::ModelConfig& config, const jobs::JobSpec& spec, const RankShare& share,
                                 int32_t packing, int64_t available) {
  const TrainingNeed in_memory = NeedOf(config, spec, share, packing, false);
  const TrainingNeed in_file = NeedOf(config, spec, share, packing, true);
  const absl::Status without = CheckTrainingMemory(config, in_memory, available);
  const bool can = share.can_offload && spec.offload != jobs::OffloadPolicy::kNever && spec.lora.rank == 0;
  if (spec.offload != jobs::OffloadPolicy::kAlways) {
    if (without.ok()) return false;
    if (!can) return DoesNotFit(config, spec, share, in_memory, available, without);
  } else if (!can) {
    return absl::FailedPreconditionError(
        "offload: always, but this worker has no --train_offload_dir for masters and moments of experts");
  }
  if (const absl::Status with = CheckTrainingMemory(config, in_file, available); !with.ok()) {
    return DoesNotFit(config, spec, share, in_file, available, with);
  }
  return true;
}

absl::Status MemoryFit::CountNeighbours() {
  const MachineMemory memory = context_.input().memory();
  RankWord word;
  word.SetText(
      absl::StrJoin(memory.pools, " ", [](std::string* out, const MemoryPool& pool) { out->append(KeyOf(pool)); }));
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(context_.comm(), word, context_.input().step_limit));
  for (const RankWord& each : words) {
    for (const absl::string_view key : absl::StrSplit(each.text, ' ', absl::SkipEmpty())) ++ranks_of_pool_[key];
  }
  ranks_here_ = RanksOf(memory.pools.front());
  return absl::OkStatus();
}

int MemoryFit::RanksOf(const MemoryPool& pool) const {
  const auto found = ranks_of_pool_.find(KeyOf(pool));
  return found == ranks_of_pool_.end() ? 1 : found->second;
}

int64_t MemoryFit::Available() const {
  const TrainJobInput& input = context_.input();
  int64_t share = std::numeric_limits<int64_t>::max();
  for (const MemoryPool& pool : input.memory().pools) share = std::min(share, pool.available_bytes / RanksOf(pool));
  return share - (input.promised_memory ? input.promised_memory() : 0);
}

OpenStateFileFn MemoryFit::OffloadFile() const {
  if (context_.spec().offload == jobs::OffloadPolicy::kNever || context_.spec().lora.rank > 0) return nullptr;
  return ActivationsFile();
}

OpenStateFileFn MemoryFit::ActivationsFile() const {
  const TrainJobInput& input = context_.input();
  if (input.open_offload) return input.open_offload;
  if (input.offload_dir.empty()) return nullptr;
  return [directory = input.offload_dir](int64_t bytes) { return OpenStateFile(directory, bytes); };
}

RankShare MemoryFit::Share() const {
  return {.world = context_.comm()->world(),
          .ranks_here = ranks_here_,
          .can_offload = OffloadFile() != nullptr,
          .frozen = frozen_};
}

absl::StatusOr<bool> MemoryFit::MustOffload(int32_t packing, int64_t available) const {
  absl::StatusOr<bool> must = train::MustOffload(config_, context_.spec(), Share(), packing, available);
  if (!must.ok()) return Failed(must.status());
  return must;
}

absl::Status MemoryFit::CheckOffloadRoom(absl::Span<const int32_t> packings, bool offload) const {
  const TrainJobInput& input = context_.input();
  absl::int128 experts = 0, activations = 0;
  for (const int32_t packing : packings) {
    const TrainingBytes need = TrainingMemory(config_, NeedOf(config_, context_.spec(), Share(), packing, offload));
    experts += need.offloaded;
    activations = need.offloaded_activations;
  }
  const auto bytes = static_cast<int64_t>(experts + activations);
  if (bytes == 0 || input.open_offload || input.offload_dir.empty()) return absl::OkStatus();
  return CheckStateRoom(input.offload_dir, bytes, ranks_here_);
}

absl::Status MemoryFit::Check() {
  if (context_.spec().restore.offloads() && ActivationsFile() == nullptr) {
    return Failed(absl::FailedPreconditionError(
        "restore: offload, but this worker has no --train_offload_dir for rows that backward needs"));
  }
  const int32_t packing = jobs::FirstPacking(context_.spec().communication);
  ASSIGN_OR_RETURN(offloads_, MustOffload(packing, Available()));
  return CheckOffloadRoom({packing}, offloads_);
}

absl::StatusOr<bool> MemoryFit::CheckPacked(int32_t most, absl::Span<const int32_t> files, int32_t first) const {
  const int64_t available = Available();
  ASSIGN_OR_RETURN(const bool must_offload, MustOffload(most, available));
  RETURN_IF_ERROR(CheckOffloadRoom(files, must_offload));
  // A job that fits with more replicas fits with fewer.
  return first > 1 ? MustOffload(first, available) : offloads_;
}

void MemoryFit::ReportActivations() {
  const std::string& directory = context_.input().offload_dir;
  if (!context_.spec().restore.offloads()) return;
  context_.notes().Stage(absl::StrCat("keeps rows that backward needs in a file of ", directory,
                                      IsInMemory(directory) ? ", which is tmpfs: they still take memory" : ""));
}

void MemoryFit::ReportOffload(const Parameters& parameters) {
  const std::string& directory = context_.input().offload_dir;
  const int64_t bytes = parameters.offload() == nullptr ? 0 : parameters.offload()->counters().bytes;
  if (bytes == std::exchange(reported_offload_, bytes)) return;
  context_.notes().Stage(
      bytes == 0 ? "keeps masters and moments of experts in memory again"
                 : absl::StrCat("keeps masters and moments of experts, ", Mib(bytes), ", in a file of ", directory,
                                IsInMemory(directory) ? ", which is tmpfs: they still take memory" : ""));
}

}  // namespace switchyard::train
