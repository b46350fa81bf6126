#include "workers/train/job/job_chunks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/chunks/chunk_journal.h"
#include "workers/train/chunks/layer_times.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {

absl::Status JobChunks::Find(const model::ModelConfig& config) {
  if (!jobs::DecidesChunks(context_.spec().communication)) return absl::OkStatus();
  const int ranks_of_rows = context_.comm()->world() / jobs::FirstPacking(context_.spec().communication);
  if (ranks_of_rows == 1 || config.num_moe_layers() == 0) return absl::OkStatus();
  DecideAnew("");
  absl::StatusOr<std::string> text = std::string();
  if (context_.leads()) text = ReadChunkJournal(checkpoints_);
  ASSIGN_OR_RETURN(text, context_.AgreeOnText(text));
  return context_.AgreeOn(Replay(*text));
}

// Decisions up to the checkpoint are adopted; later ones are repeated at their steps.
absl::Status JobChunks::Replay(absl::string_view text) {
  const int64_t step = start_.state().step;
  if (text.empty()) {
    renews_journal_ = true;
    if (step > 0) DecideAnew(absl::StrCat(kChunkJournalName, " is not there"));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(ChunkJournal journal, DecodeChunkJournal(text));
  const absl::Status replayed = controller_->Replay(journal.decisions, step);
  if (absl::IsFailedPrecondition(replayed)) {  // other ranks
    DecideAnew(absl::StrCat(kChunkJournalName, " does not count: ", replayed.message()));
    return absl::OkStatus();
  }
  if (!replayed.ok()) return absl::Status(replayed.code(), absl::StrCat(kChunkJournalName, ": ", replayed.message()));
  journalled_ = std::move(journal.decisions);
  return absl::OkStatus();
}

// why: the reason that there is no journal to use.
void JobChunks::DecideAnew(const std::string& why) {
  jobs::ChunkOptions options = context_.input().chunks;
  options.world = context_.comm()->world();
  options.searches = context_.spec().communication.granularity.rule == jobs::ChunkRule::kProfile;
  controller_.emplace(options);
  journalled_.clear();
  if (why.empty()) return;
  renews_journal_ = true;
  context_.Warn(absl::StrCat(why, "; into how many chunks layers are cut is decided anew, so what follows need not be ",
                             "to the bit what it would have been"));
}

absl::Status JobChunks::Open(Trainer* trainer) {
  if (!controller_.has_value()) return absl::OkStatus();
  trainer_ = trainer;
  if (renews_journal_) {
    absl::Status written;
    if (context_.leads()) {
      written = LostIfNot(WriteChunkJournal(checkpoints_, {.attempt = context_.input().attempt}));
    }
    RETURN_IF_ERROR(context_.AgreeOn(written));
  }
  const bool measures = context_.spec().communication.granularity.rule == jobs::ChunkRule::kAuto;
  if (measures && controller_->Decides(start_.state().step) && !controller_->Predicts(start_.state().step)) {
    ASSIGN_OR_RETURN(const jobs::ChunkDecision decision, Measure(trainer));
    RETURN_IF_ERROR(Journal(decision));
    controller_->Adopt(decision);
    Note(decision);
  }
  trainer->set_chunks_of([this](int64_t rows) { return controller_->ChunksFor(rows); });
  return absl::OkStatus();
}

// Rank 0's decision, by what the slowest rank took.
absl::StatusOr<jobs::ChunkDecision> JobChunks::Measure(Trainer* trainer) {
  const absl::Duration limit = context_.input().step_limit;
  const absl::Time begin = absl::Now();
  context_.notes().Stage("times layers, their rows cut into chunks");
  ASSIGN_OR_RETURN(const std::vector<ChunkTime> times,
                   MeasureLayers({.comm = context_.comm(),
                                  .most = context_.input().chunks.most,
                                  .run =
                                      [&](int32_t chunks) {
                                        context_.notes().Note(absl::StrCat("times layers, chunks: ", chunks));
                                        return trainer->RunLayers(chunks, absl::Now() + limit);
                                      },
                                  .limit = limit}));
  trainer->DropBuffers();
  const ChunkTime fastest = FastestOf(times);
  const jobs::ChunkDecision mine = {
      .step = start_.state().step,
      .world = context_.comm()->world(),
      .rows = context_.micro_batch_sequences() * context_.comm()->world() * context_.spec().sequence_length,
      .from = 1,
      .to = fastest.chunks,
      .ns = std::llround(fastest.seconds * 1e9),
      .reason = jobs::ChunkReason::kMeasured,
      .why = absl::StrCat(ChunkTimesText(times), "; measured in ",
                          absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))))};
  ASSIGN_OR_RETURN(const std::string text, context_.AgreeOnText(jobs::EncodeChunkDecisions({&mine, 1})));
  ASSIGN_OR_RETURN(const std::vector<jobs::ChunkDecision> decisions, jobs::DecodeChunkDecisions(text));
  return decisions.at(0);
}

// Rank 0 writes; when this returns, the decision is on the disk.
absl::Status JobChunks::Journal(const jobs::ChunkDecision& decision) {
  journalled_.push_back(decision);
  absl::Status written;
  if (context_.leads()) {
    written =
        LostIfNot(WriteChunkJournal(checkpoints_, {.attempt = context_.input().attempt, .decisions = journalled_}));
  }
  return context_.AgreeOn(written);
}

absl::Status JobChunks::AfterStep(const StepReport& report) {
  if (!controller_.has_value()) return absl::OkStatus();
  const TrainJobInput& input = context_.input();
  const int64_t step = trainer_->steps();
  if (!report.skipped && context_.spec().communication.granularity.rule == jobs::ChunkRule::kProfile) {
    controller_->AddStep(
        report.rows, input.chunk_times ? input.chunk_times(step, report) : std::llround(report.seconds.total * 1e9));
  }
  if (!controller_->Decides(step)) return absl::OkStatus();
  const bool predicted = controller_->Predicts(step);
  int64_t slowest = 0;
  if (!predicted) {
    RankWord word;
    word.number = controller_->MedianNs();
    ASSIGN_OR_RETURN(const std::vector<RankWord> words, ExchangeWords(context_.comm(), word, input.step_limit));
    for (const RankWord& each : words) slowest = std::max(slowest, each.number);
  }
  const jobs::ChunkDecision decision = controller_->Propose(step, slowest);
  if (!predicted) RETURN_IF_ERROR(Journal(decision));
  controller_->Adopt(decision);
  Note(decision);
  return absl::OkStatus();
}

void JobChunks::Note(const jobs::ChunkDecision& decision) {
  context_.notes().Stage(decision.ToString());
  if (decision.reason != jobs::ChunkReason::kFound) return;
  const jobs::ChunkSearch& search = controller_->search();
  std::string tried;
  for (const auto& [chunks, ns] : search.Tried(decision.rows)) {
    absl::StrAppend(&tried, tried.empty() ? "" : ", ", chunks, " chunks ", ns / 1000, " us");
  }
  context_.notes().Stage(absl::StrCat("steps of ", decision.rows, " rows: ", tried, "; ",
                                      search.HasOneMinimum(decision.rows) ? "one minimum" : "several minima", ", ",
                                      search.RisesWithRows() ? "chunks rise with rows" : "chunks may fall with rows"));
}

}  // namespace switchyard::train
