#include "workers/train/packing/packing_journal.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/job/decision_log.h"

namespace switchyard::train {
namespace {

constexpr DecisionLogKind kPackingLog = {
    .file = kPackingJournalName, .format = "switchyard-packing", .anew = "how experts are packed"};

DecisionLog LogOf(const PackingJournal& journal) {
  return {.attempt = journal.attempt, .lines = jobs::EncodePackingDecisions(journal.decisions)};
}

}  // namespace

std::string EncodePackingJournal(const PackingJournal& journal) {
  return EncodeDecisionLog(kPackingLog, LogOf(journal));
}

absl::StatusOr<PackingJournal> DecodePackingJournal(absl::string_view text) {
  ASSIGN_OR_RETURN(const DecisionLog log, DecodeDecisionLog(kPackingLog, text));
  absl::StatusOr<std::vector<jobs::PackingDecision>> decisions = jobs::DecodePackingDecisions(log.lines);
  if (!decisions.ok()) return NoSuchDecisions(kPackingLog, decisions.status().message());
  return PackingJournal{.attempt = log.attempt, .decisions = *std::move(decisions)};
}

absl::StatusOr<std::string> ReadPackingJournal(checkpoint::FileSystem* files) {
  return ReadDecisionLog(files, kPackingLog);
}

absl::Status WritePackingJournal(checkpoint::FileSystem* files, const PackingJournal& journal) {
  return WriteDecisionLog(files, kPackingLog, LogOf(journal));
}

}  // namespace switchyard::train
