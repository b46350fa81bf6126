#include "workers/train/job/job_chunks.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/chunks/chunk_journal.h"
#include "workers/train/chunks/layer_times.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {

absl::Status JobChunks::Find(const model::ModelConfig& config) {
  if (!jobs::DecidesChunks(context_.spec().communication)) return absl::OkStatus();
  const int ranks_of_rows = context_.comm()->world() / jobs::FirstPacking(context_.spec().communication);
  if (ranks_of_rows == 1 || config.num_moe_layers() == 0) return absl::OkStatus();
  decides_ = true;
  absl::StatusOr<std::string> log = std::string();
  if (context_.leads()) log = ReadChunkJournal(checkpoints_);
  ASSIGN_OR_RETURN(log, context_.AgreeOnText(log));
  return context_.AgreeOn(Read(*log));
}

absl::Status JobChunks::Read(absl::string_view log) {
  if (log.empty()) {
    if (start_.state().step > 0) DecideAnew("is not there");
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(ChunkJournal journal, DecodeChunkJournal(log));
  if (!journal.decision.has_value() && start_.state().step == 0) return absl::OkStatus();
  absl::Status counts = absl::FailedPreconditionError("nothing in it was decided by what layers took");
  if (journal.decision.has_value()) counts = jobs::CheckCounts(*journal.decision, context_.comm()->world());
  if (counts.ok()) {
    decision_ = std::move(journal.decision);
  } else {
    DecideAnew(absl::StrCat("does not count: ", counts.message()));
  }
  return absl::OkStatus();
}

// why: what is wrong with the log.
void JobChunks::DecideAnew(absl::string_view why) {
  context_.Warn(absl::StrCat(kChunkJournalName, " ", why,
                             "; into how many chunks layers are cut is decided anew, so what follows need not be to "
                             "the bit what it would have been"));
}

absl::Status JobChunks::Open(Trainer* trainer) {
  if (!decides_) return absl::OkStatus();
  if (!decision_.has_value()) {
    ASSIGN_OR_RETURN(const jobs::ChunkDecision decision, Measure(trainer));
    RETURN_IF_ERROR(Journal(decision));
    context_.notes().Stage(decision.ToString());
    decision_ = decision;
  }
  trainer->set_chunks(decision_->chunks);
  return absl::OkStatus();
}

// Rank 0's decision, by what the slowest rank took.
absl::StatusOr<jobs::ChunkDecision> JobChunks::Measure(Trainer* trainer) {
  const absl::Duration limit = context_.input().step_limit;
  const absl::Time begin = MonotonicNow();
  context_.notes().Stage("times layers, their rows cut into chunks");
  ASSIGN_OR_RETURN(const std::vector<ChunkTime> times,
                   MeasureLayers({.comm = context_.comm(),
                                  .run =
                                      [&](int32_t chunks) {
                                        context_.notes().Note(absl::StrCat("times layers, chunks: ", chunks));
                                        return trainer->RunLayers(chunks, MonotonicNow() + limit);
                                      },
                                  .limit = limit}));
  trainer->DropBuffers();
  const ChunkTime fastest = FastestOf(times);
  const jobs::ChunkDecision mine = {
      .step = start_.state().step,
      .world = context_.comm()->world(),
      .rows = context_.micro_batch_sequences() * context_.comm()->world() * context_.spec().sequence_length,
      .chunks = fastest.chunks,
      .ns = std::llround(fastest.seconds * 1e9),
      .why = absl::StrCat(ChunkTimesText(times), "; measured in ",
                          absl::FormatDuration(absl::Trunc(MonotonicNow() - begin, absl::Milliseconds(1))))};
  ASSIGN_OR_RETURN(const std::string text, context_.AgreeOnText(jobs::EncodeChunkDecision(mine)));
  ASSIGN_OR_RETURN(const std::optional<jobs::ChunkDecision> decision, jobs::DecodeChunkDecision(text));
  return decision.value_or(mine);
}

// Rank 0 writes; when this returns, the decision is on the disk.
absl::Status JobChunks::Journal(const jobs::ChunkDecision& decision) {
  absl::Status written;
  if (context_.leads()) {
    written = LostIfNot(WriteChunkJournal(checkpoints_, {.attempt = context_.input().attempt, .decision = decision}));
  }
  return context_.AgreeOn(written);
}

}  // namespace switchyard::train
