#include "workers/train/chunks/chunk_journal.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/job/decision_log.h"

namespace switchyard::train {
namespace {

constexpr DecisionLogKind kChunkLog = {
    .file = kChunkJournalName, .format = "switchyard-chunks", .anew = "into how many chunks layers are cut"};

DecisionLog LogOf(const ChunkJournal& journal) {
  return {.attempt = journal.attempt,
          .lines = journal.decision.has_value() ? jobs::EncodeChunkDecision(*journal.decision) : ""};
}

}  // namespace

std::string EncodeChunkJournal(const ChunkJournal& journal) { return EncodeDecisionLog(kChunkLog, LogOf(journal)); }

absl::StatusOr<ChunkJournal> DecodeChunkJournal(absl::string_view text) {
  ASSIGN_OR_RETURN(const DecisionLog log, DecodeDecisionLog(kChunkLog, text));
  absl::StatusOr<std::optional<jobs::ChunkDecision>> decision = jobs::DecodeChunkDecision(log.lines);
  if (!decision.ok()) return NoSuchDecisions(kChunkLog, decision.status().message());
  return ChunkJournal{.attempt = log.attempt, .decision = *std::move(decision)};
}

absl::StatusOr<std::string> ReadChunkJournal(checkpoint::FileSystem* files) {
  return ReadDecisionLog(files, kChunkLog);
}

absl::Status WriteChunkJournal(checkpoint::FileSystem* files, const ChunkJournal& journal) {
  return WriteDecisionLog(files, kChunkLog, LogOf(journal));
}

}  // namespace switchyard::train
