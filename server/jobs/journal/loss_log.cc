#include "server/jobs/journal/loss_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/io/errno_status.h"
#include "scheduler/base/io/write_whole.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/pack/block_reader.h"

namespace switchyard::server {
namespace {

constexpr absl::string_view kStepsHeader =
    "step,loss,balance_loss,z_loss,learning_rate,gradient_norm,tokens,tokens_per_second,seconds,forward_seconds,"
    "backward_seconds,expert_seconds,all_to_all_seconds,all_reduce_seconds,optimizer_seconds,data_seconds,dropped_rows,"
    "dead_experts\n";
constexpr absl::string_view kEvaluationsHeader = "step,loss,tokens\n";
constexpr absl::string_view kSetsHeader = "step,set,loss,perplexity,tokens\n";
constexpr absl::string_view kPreferenceColumns = ",margin,accuracy";
constexpr int64_t kMaxRowBytes = 16384;  // a set's name has up to 4096 bytes, each of which may be a quote

// With further columns for jobs with preferences.
std::string HeaderOf(absl::string_view header, bool preferences) {
  if (!preferences) return std::string(header);
  return absl::StrCat(header.substr(0, header.size() - 1), kPreferenceColumns, "\n");
}

// Those columns of a row; "" for a job without preferences.
std::string PreferenceCells(bool preferences, const std::optional<jobs::PreferenceFigures>& figures) {
  if (!preferences) return "";
  return figures.has_value() ? absl::StrFormat(",%.9g,%.9g", figures->margin, figures->accuracy) : ",,";
}

// The format rotates its CRCs, since a CRC of bytes that contain CRCs is weak.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The part of a CSV that an attempt keeps when it goes on from a step: the header and the whole rows up to that step.
struct KeptRows {
  int64_t bytes = 0;  // 0: the file is empty, its header is torn, or it has another header
  int64_t step = -1;  // of the last row
};

KeptRows FindKeptRows(int fd, const std::string& name, absl::string_view header, int64_t step) {
  absl::StatusOr<BlockReader> reader = BlockReader::Create(fd, name, kMaxRowBytes);
  KeptRows kept;
  while (reader.ok()) {
    const absl::StatusOr<LineBlock> block = reader->Next();
    if (!block.ok() || block->bytes.empty()) break;
    absl::string_view rest = block->bytes;
    while (!rest.empty()) {
      const size_t newline = rest.find('\n');
      if (newline == absl::string_view::npos) return kept;
      const absl::string_view row = rest.substr(0, newline + 1);
      int64_t row_step = -1;
      const bool good = kept.bytes == 0 ? row == header
                                        : absl::SimpleAtoi(row.substr(0, row.find(',')), &row_step) && row_step <= step;
      if (!good) return kept;
      kept.bytes += static_cast<int64_t>(row.size());
      kept.step = row_step;
      rest.remove_prefix(row.size());
    }
  }
  return kept;
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name[0] == '\0' ? "localhost" : name;
}

// As RFC 4180 has it.
std::string CsvText(absl::string_view text) {
  if (text.find_first_of(",\"") == absl::string_view::npos) return std::string(text);
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

void AddValue(tensorboard::Event* event, const std::string& tag, double value) {
  tensorboard::Summary::Value* to = event->mutable_summary()->add_value();
  to->set_tag(tag);
  to->set_simple_value(static_cast<float>(value));
}

void AddPreferences(tensorboard::Event* event, absl::string_view group, absl::string_view set,
                    const std::optional<jobs::PreferenceFigures>& figures) {
  if (!figures.has_value()) return;
  AddValue(event, absl::StrCat(group, "margin", set), figures->margin);
  AddValue(event, absl::StrCat(group, "accuracy", set), figures->accuracy);
}

absl::Status CopyRows(const RootDir& root, const std::string& from, const std::string& to, absl::string_view header,
                      int64_t step) {
  ASSIGN_OR_RETURN(const int source_fd, root.OpenFile(from));
  const UniqueFd source(source_fd);
  ASSIGN_OR_RETURN(const int target_fd, root.OpenAs(to, O_WRONLY | O_CREAT | O_EXCL, 0666));
  const UniqueFd target(target_fd);
  std::string bytes(size_t{1} << 20, '\0');
  for (int64_t at = 0, end = FindKeptRows(source.get(), from, header, step).bytes; at < end;) {
    const size_t want = std::min(bytes.size(), static_cast<size_t>(end - at));
    const ssize_t count = pread(source.get(), bytes.data(), want, at);
    if (count <= 0) return absl::UnavailableError(absl::StrCat(from, ": ended after ", at, " of ", end, " bytes"));
    const int error = WriteWhole(target.get(), absl::string_view(bytes.data(), static_cast<size_t>(count)));
    if (error != 0) return ErrnoStatus(error, to);
    at += count;
  }
  return absl::OkStatus();
}

}  // namespace

void CopyLosses(const RootDir& checkpoint_root, const std::string& parent, const std::string& fork, int64_t step,
                const LossRows& rows) {
  const auto copy = [&](const char* name, absl::string_view header) {
    const absl::Status copied = CopyRows(checkpoint_root, absl::StrCat(parent, "/log/", name),
                                         absl::StrCat(fork, "/log/", name), HeaderOf(header, rows.preferences), step);
    if (!copied.ok()) LogWarn(fork, ": begins without its parent's losses: ", copied.message());
  };
  if (const absl::Status made = checkpoint_root.MakeFolders(absl::StrCat(fork, "/log")); !made.ok()) {
    return LogWarn(fork, ": begins without its parent's losses: ", made.message());
  }
  copy("steps.csv", kStepsHeader);
  if (rows.evaluations) copy("evaluations.csv", kEvaluationsHeader);
  if (rows.named_sets) copy("evaluation_sets.csv", kSetsHeader);
}

std::string EventRecord(const tensorboard::Event& event) {
  const std::string message = event.SerializeAsString();
  std::string record;
  AppendInt(uint64_t{message.size()}, &record);
  AppendInt(MaskedCrc(record), &record);
  record += message;
  AppendInt(MaskedCrc(message), &record);
  return record;
}

RowFile::RowFile(UniqueFd fd, std::string name, int64_t end) : fd_(std::move(fd)), name_(std::move(name)), end_(end) {
  if (ftruncate(fd_.get(), end_) != 0) Complain(std::strerror(errno));
}

void RowFile::Complain(absl::string_view what) {
  if (!std::exchange(complained_, true)) LogWarn(name_, ": rows are left out: ", what);
}

void RowFile::Append(absl::string_view row) {
  ssize_t count = 0;
  do {
    count = pwrite(fd_.get(), row.data(), row.size(), end_);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(row.size())) {
    end_ += count;
    return;
  }
  Complain(count < 0 ? std::strerror(errno) : "the disk took a part of one");
  // A part of a row would spoil the next one.
  if (ftruncate(fd_.get(), end_) != 0) Complain(std::strerror(errno));
}

absl::StatusOr<RowFile> LossLog::OpenCsv(const std::string& name, absl::string_view header, int64_t step,
                                         int64_t* last_step) const {
  ASSIGN_OR_RETURN(const int opened, root_.OpenAs(name, O_RDWR | O_CREAT | O_NONBLOCK, 0666));
  UniqueFd fd(opened);
  const KeptRows kept = FindKeptRows(fd.get(), name, header, step);
  std::string first(header.size(), '\0');
  const ssize_t had = pread(fd.get(), first.data(), first.size(), 0);
  // A torn header is replaced; a file with any other beginning is kept as NAME.old.
  const bool others = kept.bytes == 0 && had > 0 && first.substr(0, static_cast<size_t>(had)) != header.substr(0, had);
  if (others) {
    const size_t slash = name.rfind('/');
    ASSIGN_OR_RETURN(const int folder_fd, root_.OpenFolder(name.substr(0, slash)));
    const UniqueFd folder(folder_fd);
    const std::string plain = name.substr(slash + 1);
    if (renameat(folder.get(), plain.c_str(), folder.get(), (plain + ".old").c_str()) != 0) {
      return absl::InternalError(absl::StrCat(name, ": has other columns: rename: ", std::strerror(errno)));
    }
    return OpenCsv(name, header, step, last_step);
  }
  *last_step = kept.step;
  RowFile file(std::move(fd), name, kept.bytes);
  if (kept.bytes == 0) file.Append(header);
  return file;
}

tensorboard::Event LossLog::NewEvent(int64_t step) const {
  tensorboard::Event event;
  event.set_wall_time(absl::ToDoubleSeconds(now_() - absl::UnixEpoch()));
  event.set_step(step);
  return event;
}

absl::StatusOr<RowFile> LossLog::OpenEvents(const Job& job, const std::string& folder, int64_t step) const {
  const std::string name = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d", folder, absl::ToUnixSeconds(now_()),
                                           HostName(), job.attempt);
  ASSIGN_OR_RETURN(const int fd, root_.OpenAs(name, O_RDWR | O_CREAT | O_NONBLOCK, 0666));
  RowFile file(UniqueFd(fd), name, 0);
  tensorboard::Event version = NewEvent(0);
  version.set_file_version("brain.Event:2");
  file.Append(EventRecord(version));
  tensorboard::Event start = NewEvent(step + 1);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  file.Append(EventRecord(start));
  return file;
}

absl::StatusOr<LossLog::Files> LossLog::Open(const Job& job, int64_t step) const {
  const std::string folder = absl::StrCat(job.id, "/log");
  RETURN_IF_ERROR(root_.MakeFolders(folder));
  int64_t last_step = -1, evaluated = -1;
  const auto open = [&](const char* name, absl::string_view header, int64_t* last) {
    return OpenCsv(absl::StrCat(folder, name), HeaderOf(header, job.spec.has_pairs()), step, last);
  };
  ASSIGN_OR_RETURN(RowFile steps, open("/steps.csv", kStepsHeader, &last_step));
  ASSIGN_OR_RETURN(RowFile evaluations, open("/evaluations.csv", kEvaluationsHeader, &evaluated));
  ASSIGN_OR_RETURN(RowFile events, OpenEvents(job, folder, step));
  Files files = {std::move(steps), std::move(evaluations), std::move(events), std::nullopt, evaluated};
  if (job.spec.evaluation_names.empty()) return files;
  ASSIGN_OR_RETURN(files.sets, open("/evaluation_sets.csv", kSetsHeader, &files.sets_evaluated));
  return files;
}

void LossLog::OnStarted(const Job& job, int64_t step) {
  jobs_.erase(job.id);
  absl::StatusOr<Files> files = Open(job, step);
  if (files.ok()) {
    jobs_.emplace(job.id, *std::move(files));
  } else {
    LogWarn("job ", job.id, ": its losses are not logged: ", files.status().message());
  }
}

void LossLog::OnStep(const Job& job, const jobs::TrainProgress& progress) {
  const auto files = jobs_.find(job.id);
  if (files == jobs_.end()) return;
  const jobs::StepSeconds& seconds = progress.seconds;
  const auto measured = [&](double value) { return progress.skipped ? std::string() : absl::StrFormat("%.9g", value); };
  files->second.steps.Append(absl::StrFormat(
      "%d,%s,%s,%s,%.9g,%s,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%d,%d%s\n", progress.step,
      measured(progress.loss), measured(progress.balance_loss), measured(progress.z_loss), progress.learning_rate,
      measured(progress.gradient_norm), progress.tokens, progress.tokens_per_second, seconds.total, seconds.forward,
      seconds.backward, seconds.experts, seconds.all_to_all, seconds.all_reduce, seconds.optimizer, seconds.data,
      progress.dropped_rows, progress.dead_experts, PreferenceCells(job.spec.has_pairs(), progress.preferences)));
  tensorboard::Event event = NewEvent(progress.step);
  if (!progress.skipped) {
    AddValue(&event, "train/loss", progress.loss);
    AddValue(&event, "train/balance_loss", progress.balance_loss);
    AddValue(&event, "train/z_loss", progress.z_loss);
    AddPreferences(&event, "train/", "", progress.preferences);
  }
  AddValue(&event, "train/lr", progress.learning_rate);
  if (!progress.skipped) AddValue(&event, "train/grad_norm", progress.gradient_norm);
  AddValue(&event, "train/tokens_per_second", progress.tokens_per_second);
  AddValue(&event, "train/dropped_rows", static_cast<double>(progress.dropped_rows));
  if (!progress.skipped) AddValue(&event, "train/dead_experts", static_cast<double>(progress.dead_experts));
  const std::pair<const char*, double> phases[] = {{"seconds/step", seconds.total},
                                                   {"seconds/forward", seconds.forward},
                                                   {"seconds/backward", seconds.backward},
                                                   {"seconds/experts", seconds.experts},
                                                   {"seconds/all_to_all", seconds.all_to_all},
                                                   {"seconds/all_reduce", seconds.all_reduce},
                                                   {"seconds/optimizer", seconds.optimizer},
                                                   {"seconds/data", seconds.data}};
  for (const auto& [tag, value] : phases) {
    AddValue(&event, tag, value);
  }
  files->second.events.Append(EventRecord(event));
}

void LossLog::OnEvaluated(const Job& job, const jobs::EvaluationResult& result) {
  const auto files = jobs_.find(job.id);
  if (files == jobs_.end()) return;
  const bool pairs = job.spec.has_pairs();
  if (files->second.sets.has_value() && result.step > files->second.sets_evaluated) {
    std::string rows;
    for (const jobs::SetResult& set : result.sets) {
      const std::string perplexity = pairs ? "" : absl::StrFormat("%.9g", std::exp(set.loss));
      absl::StrAppendFormat(&rows, "%d,%s,%.9g,%s,%d%s\n", result.step, CsvText(set.name), set.loss, perplexity,
                            set.tokens, PreferenceCells(pairs, set.preferences));
    }
    files->second.sets->Append(rows);
  }
  // An attempt that goes on from an evaluated step evaluates it again, with the same weights.
  if (result.step <= files->second.evaluated) return;
  files->second.evaluations.Append(absl::StrFormat("%d,%.9g,%d%s\n", result.step, result.loss, result.tokens,
                                                   PreferenceCells(pairs, result.preferences)));
  tensorboard::Event event = NewEvent(result.step);
  AddValue(&event, "eval/loss", result.loss);
  if (!pairs) AddValue(&event, "eval/perplexity", std::exp(result.loss));
  AddPreferences(&event, "eval/", "", result.preferences);
  for (const jobs::SetResult& set : result.sets) {
    AddValue(&event, absl::StrCat("eval_sets/loss/", set.name), set.loss);
    if (!pairs) AddValue(&event, absl::StrCat("eval_sets/perplexity/", set.name), std::exp(set.loss));
    AddPreferences(&event, "eval_sets/", absl::StrCat("/", set.name), set.preferences);
  }
  files->second.events.Append(EventRecord(event));
}

void LossLog::OnEnded(const Job& job) { jobs_.erase(job.id); }

}  // namespace switchyard::server
