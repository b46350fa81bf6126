#include "workers/train/preferences/job_references.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

constexpr char kWasRead[] = "was read";
constexpr int64_t kPairsAtOnce = 1 << 16;           // of a message
constexpr int64_t kMostSamples = int64_t{1} << 26;  // of more the windows are not looked up: all are wanted
constexpr int64_t kNoteEvery = 256;                 // windows or samples

static_assert(std::is_trivially_copyable_v<PairLogProbs> && sizeof(PairLogProbs) == kReferencePairBytes);

// The file of a pair, by its number in the source.
size_t FileOf(const DataSource& source, int64_t pair) {
  const absl::Span<const int64_t> first = source.first_pairs();
  return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), pair) - first.begin()) - 1;
}

}  // namespace

std::vector<std::pair<DataSource*, std::string>> JobReferences::Sources() const {
  std::vector<std::pair<DataSource*, std::string>> sources = {{data_.training.get(), "datasets"}};
  for (const EvaluationData& set : data_.evaluation) {
    sources.emplace_back(set.source.get(), set.name.empty() ? "evaluation" : absl::StrCat("evaluation set ", set.name));
  }
  return sources;
}

const PairLogProbs& JobReferences::Of(const DataSource& source, int64_t pair) const {
  const size_t file = FileOf(source, pair);
  const Entry& entry = entries_.at(source.files()[file].header().contents);
  return entry.values.pairs[static_cast<size_t>(pair - source.first_pairs()[file])];
}

void JobReferences::Set(const DataSource& source, int64_t pair, const PairLogProbs& value) {
  const size_t file = FileOf(source, pair);
  Entry& entry = EntryOf(source.files()[file]);
  entry.values.pairs[static_cast<size_t>(pair - source.first_pairs()[file])] = value;
  entry.changed = true;
}

void JobReferences::Fill(const DataSource& source, TrainRows* rows) const {
  rows->references.clear();
  for (const int64_t pair : rows->pairs) rows->references.push_back(Of(source, pair));
}

absl::Status JobReferences::AddFile(const TokenFile& file, const std::string& what) {
  const jobs::TokenFileHeader& header = file.header();
  const int64_t pairs = header.num_documents / 2;
  const auto [to, is_new] = entries_.try_emplace(header.contents);
  Entry& entry = to->second;
  if (is_new) {
    entry = {.file = file.name(), .num_tokens = header.num_tokens, .num_pairs = pairs};
    entry.values = {.dtype = context_.spec().dtype, .tokens = header.contents, .base = base_};
    return absl::OkStatus();
  }
  if (entry.num_pairs == pairs && entry.num_tokens == header.num_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", file.name(), " and ", entry.file, " have one hash of their contents, ",
                   absl::Hex(header.contents, absl::kZeroPad16), ", but ", pairs, " and ", entry.num_pairs,
                   " pairs of answers in ", header.num_tokens, " and ", entry.num_tokens,
                   " tokens; the log probabilities of the reference are kept by that hash, so change one of them"));
}

absl::StatusOr<std::string> JobReferences::ReadFile(const std::string& name, Entry* entry) {
  // (Files of newer versions may be larger.)
  absl::StatusOr<std::string> bytes =
      checkpoint::ReadWholeFile(checkpoints_, name, 2 * ReferenceFileBytes(entry->num_pairs));
  if (absl::IsNotFound(bytes.status())) return "";
  if (absl::IsInvalidArgument(bytes.status())) return "is larger than it can be";
  RETURN_IF_ERROR(bytes.status());
  absl::StatusOr<ReferenceValues> read = DecodeReferences(*bytes);
  if (absl::IsFailedPrecondition(read.status())) {
    return Blocked(absl::FailedPreconditionError(
        absl::StrCat(name, ": ", read.status().message(),
                     "; let a newer program go on, or remove the file to have its values computed anew")));
  }
  if (!read.ok()) return std::string(read.status().message());
  if (read->base != base_) {
    return absl::StrCat("is of other weights than those that ", context_.spec().base_checkpoint, " has now");
  }
  if (read->dtype != entry->values.dtype) {
    return absl::StrCat("is of a job in ", DTypeName(DTypeOfJob(read->dtype)), ", this one is in ",
                        DTypeName(context_.dtype()));
  }
  if (read->tokens != entry->values.tokens || std::ssize(read->pairs) != entry->num_pairs) return "is of other data";
  entry->values = *std::move(read);
  return kWasRead;
}

absl::Status JobReferences::ReadAndSend(Entry* entry) {
  const std::string name = jobs::ReferenceFile(entry->values.tokens);
  absl::StatusOr<std::string> result = std::string();
  if (context_.leads()) result = ReadFile(name, entry);
  ASSIGN_OR_RETURN(const std::string said, context_.AgreeOnText(result));
  std::vector<PairLogProbs>& pairs = entry->values.pairs;
  pairs.resize(static_cast<size_t>(entry->num_pairs), NotComputed());
  if (said == kWasRead) return Send(&pairs);
  if (!said.empty()) {
    context_.Warn(absl::StrCat(name, ": ", said, "; log probabilities of the reference are computed anew"));
  }
  return absl::OkStatus();
}

absl::Status JobReferences::Send(std::vector<PairLogProbs>* pairs) {
  comm::Communicator* const comm = context_.comm();
  for (int64_t at = 0; comm->world() > 1 && at < std::ssize(*pairs); at += kPairsAtOnce) {
    const int64_t bytes = std::min(kPairsAtOnce, std::ssize(*pairs) - at) * kReferencePairBytes;
    PairLogProbs* const to = pairs->data() + at;
    const absl::Span<const char> mine(reinterpret_cast<const char*>(to), static_cast<size_t>(bytes));
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> work,
                     comm->Broadcast({.comm_class = comm::CommClass::kControl,
                                      .deadline = MonotonicNow() + context_.input().disk_limit},
                                     /*root=*/0, bytes, context_.leads() ? mine : absl::Span<const char>()));
    RETURN_IF_ERROR(work->Wait());
    if (!context_.leads()) std::memcpy(to, work->received()[0].span().data(), static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

bool JobReferences::MayGoOn(absl::string_view what, int64_t done, int64_t total) {
  context_.stream().pool().AwaitGate();
  if (done % kNoteEvery != 0) return true;
  if (context_.notes().due()) {
    context_.notes().Stage(
        absl::StrCat("looks for log probabilities of the reference that are missing: ", done, " of ", total, what));
  }
  return context_.wanted() && context_.stop() == jobs::StopKind::kNone;
}

// The windows of the samples that are left, by their numbers.
std::vector<bool> JobReferences::WantedWindows(const DataSource& source, int64_t first, int64_t count) {
  const auto windows = static_cast<size_t>(source.num_windows());
  std::vector<bool> wanted(windows, count > kMostSamples);
  if (count > kMostSamples) return wanted;
  size_t found = 0;
  for (int64_t sample = 0; sample < count && found < windows; ++sample) {
    if (!MayGoOn(" sequences", sample, count)) break;
    const auto window = static_cast<size_t>(source.WindowOf(first + sample));
    found += wanted[window] ? 0 : 1;
    wanted[window] = true;
  }
  return wanted;
}

absl::Status JobReferences::FindMissing(DataSource* source, const std::string& what, const std::vector<bool>& wanted) {
  Missing missing = {.source = source, .what = what};
  const std::string of = absl::StrCat(" windows of ", what);
  for (int64_t window = 0; window < source->num_windows(); ++window) {
    if (!MayGoOn(of, window, source->num_windows())) break;
    if (!wanted[static_cast<size_t>(window)]) continue;
    ASSIGN_OR_RETURN(const std::vector<int64_t> pairs, source->PairsOf(window));
    if (std::all_of(pairs.begin(), pairs.end(), [&](int64_t pair) { return IsComputed(Of(*source, pair)); })) continue;
    missing.windows.push_back(window);
  }
  if (!missing.windows.empty()) missing_.push_back(std::move(missing));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankWord>> JobReferences::Exchange(const absl::Status& mine, bool writes) {
  RankWord word;
  word.stop = static_cast<int32_t>(context_.stop());
  word.number = writes ? 1 : 0;
  word.SetStatus(mine);
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(context_.comm(), word, context_.input().disk_limit));
  if (const absl::Status error = FirstError(words); !error.ok()) {
    context_.set_agreed(true);
    return error;
  }
  int32_t stop = 0;
  for (const RankWord& each : words) stop = std::max(stop, each.stop);
  stopped_ = static_cast<jobs::StopKind>(stop);
  return words;
}

absl::Status JobReferences::Read(const TrainerState& start) {
  const jobs::JobSpec& spec = context_.spec();
  absl::Status mine = absl::OkStatus();
  for (const auto& [source, what] : Sources()) {
    for (const TokenFile& file : source->files()) {
      if (mine.ok()) mine = AddFile(file, what);
    }
  }
  RETURN_IF_ERROR(context_.AgreeOn(OfData(mine, context_.had_data())));
  for (auto& [contents, entry] : entries_) RETURN_IF_ERROR(ReadAndSend(&entry));
  for (const auto& [source, what] : Sources()) {
    const bool training = source == data_.training.get();
    const int64_t steps = std::clamp<int64_t>(spec.steps - start.step, 0, kMostSamples + 1);
    const std::vector<bool> wanted = training ? WantedWindows(*source, start.sample, steps * spec.batch_sequences)
                                              : std::vector<bool>(static_cast<size_t>(source->num_windows()), true);
    if (mine.ok()) mine = FindMissing(source, what, wanted);
  }
  return Exchange(OfData(mine, /*were_right=*/true)).status();
}

absl::Status JobReferences::Compute(Trainer* trainer) {
  written_ = MonotonicNow();
  while (!missing_.empty()) {
    RETURN_IF_ERROR(ComputeWindows(trainer, missing_.front()));
    if (stopped_ != jobs::StopKind::kNone) return absl::OkStatus();
    missing_.erase(missing_.begin());
  }
  context_.notes().Stage("has all log probabilities of the reference");
  return absl::OkStatus();
}

absl::Status JobReferences::ComputeWindows(Trainer* trainer, const Missing& missing) {
  DataSource& source = *missing.source;
  own_.assign(static_cast<size_t>(source.first_pairs().back()), false);
  const int64_t micro = context_.micro_batch_sequences(), world = context_.comm()->world();
  const auto count = static_cast<int64_t>(missing.windows.size());
  for (int64_t done = 0; done < count; done += micro * world) {
    const int64_t first = std::min(count, done + context_.comm()->rank() * micro);
    const int64_t end = std::min(count, first + micro);
    const absl::StatusOr<TrainRows> rows = source.Windows(
        absl::MakeConstSpan(missing.windows).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
    const bool due = context_.leads() && MonotonicNow() - written_ >= context_.input().reference_interval;
    ASSIGN_OR_RETURN(const std::vector<RankWord> words,
                     Exchange(OfData(rows.status(), /*were_right=*/true), /*writes=*/due));
    const bool stops = stopped_ != jobs::StopKind::kNone;
    if (stops || words[0].number == 1) RETURN_IF_ERROR(Share(source));
    if (stops) return absl::OkStatus();
    RETURN_IF_ERROR(ComputeRows(trainer, source, *rows));
    context_.notes().Note(absl::StrCat("log probabilities of the reference: ", std::min(count, done + micro * world),
                                       " of ", count, " windows of ", missing.what));
  }
  RETURN_IF_ERROR(Share(source));
  std::vector<bool>().swap(own_);
  return absl::OkStatus();
}

absl::Status JobReferences::ComputeRows(Trainer* trainer, const DataSource& source, const TrainRows& rows) {
  ASSIGN_OR_RETURN(const std::vector<PairLogProbs> pairs,
                   trainer->LogProbs(rows, MonotonicNow() + context_.input().step_limit));
  for (size_t i = 0; i < pairs.size(); ++i) {
    const int64_t pair = rows.pairs[i];
    if (!std::isfinite(pairs[i].chosen) || !std::isfinite(pairs[i].rejected)) {
      const size_t file = FileOf(source, pair);
      return absl::DataLossError(absl::StrCat(
          source.files()[file].name(), ": log probabilities of the reference are not finite: ", pairs[i].chosen,
          " and ", pairs[i].rejected, " of pair ", pair - source.first_pairs()[file], " (from 0): the weights of ",
          context_.spec().base_checkpoint, " or this pair are of no use"));
    }
    // (The sum of the ranks' values has no negative zeros either.)
    Set(source, pair, {pairs[i].chosen + 0.0, pairs[i].rejected + 0.0});
    own_[static_cast<size_t>(pair)] = true;
  }
  return absl::OkStatus();
}

absl::Status JobReferences::Share(const DataSource& source) {
  comm::Communicator* const comm = context_.comm();
  const auto total = static_cast<int64_t>(own_.size());
  std::vector<double> part;  // [pairs, 3] chosen, rejected, 1 where it is there
  for (int64_t first = 0; comm->world() > 1 && first < total; first += kPairsAtOnce) {
    const int64_t count = std::min(kPairsAtOnce, total - first);
    part.assign(static_cast<size_t>(3 * count), 0);
    for (int64_t i = 0; i < count; ++i) {
      if (!own_[static_cast<size_t>(first + i)]) continue;
      const PairLogProbs& value = Of(source, first + i);
      const double row[] = {value.chosen, value.rejected, 1};
      std::copy_n(row, 3, part.begin() + 3 * i);
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> work,
                     comm->AllReduceSum({.stream = &context_.stream(),
                                         .comm_class = comm::CommClass::kAllReduce,
                                         .deadline = MonotonicNow() + context_.input().step_limit},
                                        TensorView(part.data(), DType::kF64, {3 * count})));
    RETURN_IF_ERROR(work->Wait());
    for (int64_t i = 0; i < count; ++i) {
      const double* const row = part.data() + 3 * i;
      if (row[2] == 1) Set(source, first + i, {row[0], row[1]});  // a pair is in one window
    }
  }
  std::fill(own_.begin(), own_.end(), false);
  return context_.AgreeOn(Write(source));
}

absl::Status JobReferences::Write(const DataSource& source) {
  for (const TokenFile& file : source.files()) {
    Entry& entry = EntryOf(file);
    if (!std::exchange(entry.changed, false) || !context_.leads()) continue;
    const std::string name = jobs::ReferenceFile(entry.values.tokens);
    RETURN_IF_ERROR(LostIfNot(checkpoint::ReplaceFile(
        checkpoints_, name, absl::StrCat(name, checkpoint::kUnfinished, context_.input().attempt),
        EncodeReferences(entry.values))));
  }
  written_ = MonotonicNow();
  return absl::OkStatus();
}

}  // namespace switchyard::train
