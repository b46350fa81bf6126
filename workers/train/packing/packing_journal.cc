#include "workers/train/packing/packing_journal.h"

#include <utility>

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

constexpr char kJournalFormat[] = "switchyard-packing";
constexpr int64_t kJournalVersion = 1;

std::string HeaderOf(int64_t attempt, size_t decisions, absl::string_view lines) {
  const std::string what =
      absl::StrCat(kJournalFormat, " version=", kJournalVersion, " attempt=", attempt, " decisions=", decisions);
  return absl::StrFormat("%s crc32c=%08x\n", what, Crc32c(lines, Crc32c(what)));
}

std::string Named(absl::string_view problem) {
  return absl::StrCat(kPackingJournalName, ": ", problem,
                      "; if it is removed the job goes on, deciding anew how experts are packed, with other bits");
}

// The number after "<name>=" in that word of the first line.
bool TakeNumber(absl::string_view word, absl::string_view name, int64_t* to) {
  return absl::ConsumePrefix(&word, name) && absl::ConsumePrefix(&word, "=") && absl::SimpleAtoi(word, to) && *to >= 0;
}

}  // namespace

std::string EncodePackingJournal(const PackingJournal& journal) {
  const std::string lines = jobs::EncodePackingDecisions(journal.decisions);
  return absl::StrCat(HeaderOf(journal.attempt, journal.decisions.size(), lines), lines);
}

absl::StatusOr<PackingJournal> DecodePackingJournal(absl::string_view text) {
  PackingJournal journal;
  if (text.empty()) return journal;
  const size_t end = text.find('\n');
  const std::vector<absl::string_view> words = absl::StrSplit(text.substr(0, end), ' ');
  int64_t version = 0, decisions = 0;
  if (words[0] != kJournalFormat || words.size() < 2 || !TakeNumber(words[1], "version", &version)) {
    return absl::InvalidArgumentError(Named(absl::StrCat("is no ", kJournalFormat)));
  }
  if (version != kJournalVersion) {
    return absl::FailedPreconditionError(
        Named(absl::StrCat("version ", version, ", this program reads ", kJournalVersion)));
  }
  const bool header = end != absl::string_view::npos && words.size() == 5 &&
                      TakeNumber(words[2], "attempt", &journal.attempt) &&
                      TakeNumber(words[3], "decisions", &decisions);
  const absl::string_view lines = header ? text.substr(end + 1) : absl::string_view();
  if (!header || HeaderOf(journal.attempt, static_cast<size_t>(decisions), lines) != text.substr(0, end + 1)) {
    return absl::DataLossError(Named(absl::StrCat("damaged: its checksum is not that of its ", text.size(), " bytes")));
  }
  absl::StatusOr<std::vector<jobs::PackingDecision>> read = jobs::DecodePackingDecisions(lines);
  if (!read.ok()) return absl::DataLossError(Named(read.status().message()));
  if (static_cast<int64_t>(read->size()) != decisions) {
    return absl::DataLossError(Named(absl::StrCat("has ", read->size(), " decisions, says ", decisions)));
  }
  journal.decisions = *std::move(read);
  return journal;
}

absl::StatusOr<std::string> ReadPackingJournal(checkpoint::FileSystem* files) {
  absl::StatusOr<std::string> text = checkpoint::ReadWholeFile(files, kPackingJournalName, kMaxPackingJournalBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  if (text.ok() && text->empty()) return absl::DataLossError(Named("damaged: it is empty"));
  return text;
}

absl::Status WritePackingJournal(checkpoint::FileSystem* files, const PackingJournal& journal) {
  ASSIGN_OR_RETURN(std::string text, ReadPackingJournal(files));
  // A journal that cannot be read refuses no one; the folder's lock does.
  if (const absl::StatusOr<PackingJournal> there = DecodePackingJournal(text);
      there.ok() && there->attempt > journal.attempt) {
    return absl::FailedPreconditionError(absl::StrCat(kPackingJournalName, ": attempt ", journal.attempt,
                                                      " is over: it was written by attempt ", there->attempt));
  }
  return checkpoint::ReplaceFile(files, kPackingJournalName,
                                 absl::StrCat(kPackingJournalName, checkpoint::kUnfinished, journal.attempt),
                                 EncodePackingJournal(journal));
}

}  // namespace switchyard::train
