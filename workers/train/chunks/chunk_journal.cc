#include "workers/train/chunks/chunk_journal.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/job/decision_log.h"

namespace switchyard::train {
namespace {

constexpr DecisionLogKind kChunkLog = {
    .file = kChunkJournalName, .format = "switchyard-chunks", .anew = "into how many chunks layers are cut"};

DecisionLog LogOf(const ChunkJournal& journal) {
  return {.attempt = journal.attempt, .lines = jobs::EncodeChunkDecisions(journal.decisions)};
}

}  // namespace

std::string EncodeChunkJournal(const ChunkJournal& journal) { return EncodeDecisionLog(kChunkLog, LogOf(journal)); }

absl::StatusOr<ChunkJournal> DecodeChunkJournal(absl::string_view text) {
  ASSIGN_OR_RETURN(const DecisionLog log, DecodeDecisionLog(kChunkLog, text));
  absl::StatusOr<std::vector<jobs::ChunkDecision>> decisions = jobs::DecodeChunkDecisions(log.lines);
  if (!decisions.ok()) return NoSuchDecisions(kChunkLog, decisions.status().message());
  return ChunkJournal{.attempt = log.attempt, .decisions = *std::move(decisions)};
}

absl::StatusOr<std::string> ReadChunkJournal(checkpoint::FileSystem* files) {
  return ReadDecisionLog(files, kChunkLog);
}

absl::Status WriteChunkJournal(checkpoint::FileSystem* files, const ChunkJournal& journal) {
  return WriteDecisionLog(files, kChunkLog, LogOf(journal));
}

}  // namespace switchyard::train
