#include "workers/train/job/decision_log.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"

namespace switchyard::train {
namespace {

constexpr int64_t kLogVersion = 1;

int64_t CountLines(absl::string_view lines) { return std::count(lines.begin(), lines.end(), '\n'); }

std::string HeaderOf(const DecisionLogKind& kind, int64_t attempt, int64_t decisions, absl::string_view lines) {
  const std::string what =
      absl::StrCat(kind.format, " version=", kLogVersion, " attempt=", attempt, " decisions=", decisions);
  return absl::StrFormat("%s crc32c=%08x\n", what, Crc32c(lines, Crc32c(what)));
}

std::string Named(const DecisionLogKind& kind, absl::string_view problem) {
  return absl::StrCat(kind.file, ": ", problem, "; if it is removed the job goes on, deciding anew ", kind.anew,
                      ", with other bits");
}

// The number after "<name>=" in that word of the first line.
bool TakeNumber(absl::string_view word, absl::string_view name, int64_t* to) {
  return absl::ConsumePrefix(&word, name) && absl::ConsumePrefix(&word, "=") && absl::SimpleAtoi(word, to) && *to >= 0;
}

}  // namespace

std::string EncodeDecisionLog(const DecisionLogKind& kind, const DecisionLog& log) {
  return absl::StrCat(HeaderOf(kind, log.attempt, CountLines(log.lines), log.lines), log.lines);
}

absl::StatusOr<DecisionLog> DecodeDecisionLog(const DecisionLogKind& kind, absl::string_view text) {
  DecisionLog log;
  if (text.empty()) return log;
  const size_t end = text.find('\n');
  const std::vector<absl::string_view> words = absl::StrSplit(text.substr(0, end), ' ');
  int64_t version = 0, decisions = 0;
  if (words[0] != kind.format || words.size() < 2 || !TakeNumber(words[1], "version", &version)) {
    return absl::InvalidArgumentError(Named(kind, absl::StrCat("is no ", kind.format)));
  }
  if (version != kLogVersion) {
    return absl::FailedPreconditionError(
        Named(kind, absl::StrCat("version ", version, ", this program reads ", kLogVersion)));
  }
  const bool header = end != absl::string_view::npos && words.size() == 5 &&
                      TakeNumber(words[2], "attempt", &log.attempt) && TakeNumber(words[3], "decisions", &decisions);
  const absl::string_view lines = header ? text.substr(end + 1) : absl::string_view();
  if (!header || HeaderOf(kind, log.attempt, decisions, lines) != text.substr(0, end + 1)) {
    return absl::DataLossError(
        Named(kind, absl::StrCat("damaged: its checksum is not that of its ", text.size(), " bytes")));
  }
  if (CountLines(lines) != decisions) {
    return NoSuchDecisions(kind, absl::StrCat("has ", CountLines(lines), " decisions, says ", decisions));
  }
  log.lines = std::string(lines);
  return log;
}

absl::Status NoSuchDecisions(const DecisionLogKind& kind, absl::string_view problem) {
  return absl::DataLossError(Named(kind, problem));
}

absl::StatusOr<std::string> ReadDecisionLog(checkpoint::FileSystem* files, const DecisionLogKind& kind) {
  absl::StatusOr<std::string> text = checkpoint::ReadWholeFile(files, kind.file, kMaxDecisionLogBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  if (text.ok() && text->empty()) return NoSuchDecisions(kind, "damaged: it is empty");
  return text;
}

absl::Status WriteDecisionLog(checkpoint::FileSystem* files, const DecisionLogKind& kind, const DecisionLog& log) {
  ASSIGN_OR_RETURN(std::string text, ReadDecisionLog(files, kind));
  // A log that cannot be read refuses no one; the folder's lock does.
  if (const absl::StatusOr<DecisionLog> there = DecodeDecisionLog(kind, text);
      there.ok() && there->attempt > log.attempt) {
    return absl::FailedPreconditionError(
        absl::StrCat(kind.file, ": attempt ", log.attempt, " is over: it was written by attempt ", there->attempt));
  }
  return checkpoint::ReplaceFile(files, kind.file, absl::StrCat(kind.file, checkpoint::kUnfinished, log.attempt),
                                 EncodeDecisionLog(kind, log));
}

}  // namespace switchyard::train
