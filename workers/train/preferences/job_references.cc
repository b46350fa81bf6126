#include "workers/train/preferences/job_references.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/tensor/yield_point.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

constexpr absl::Duration kWriteEvery = absl::Minutes(1);
constexpr int64_t kSumAtOnce = 1 << 17;             // numbers
constexpr int64_t kMostSamples = int64_t{1} << 26;  // of more the windows are not looked up: all are wanted

// The windows of the samples that are left, by their numbers.
std::vector<bool> WantedWindows(const DataSource& source, int64_t first, int64_t count) {
  const auto windows = static_cast<size_t>(source.num_windows());
  std::vector<bool> wanted(windows, count > kMostSamples);
  if (count > kMostSamples) return wanted;
  size_t found = 0;
  for (int64_t sample = first; sample < first + count && found < windows; ++sample) {
    const auto window = static_cast<size_t>(source.WindowOf(sample));
    found += wanted[window] ? 0 : 1;
    wanted[window] = true;
  }
  return wanted;
}

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
  const ReferenceValues& values = values_.at(source.files()[file].header().contents);
  return values.pairs[static_cast<size_t>(pair - source.first_pairs()[file])];
}

void JobReferences::Fill(const DataSource& source, TrainRows* rows) const {
  rows->references.clear();
  for (const int64_t pair : rows->pairs) rows->references.push_back(Of(source, pair));
}

absl::Status JobReferences::ReadFile(const TokenFile& file) {
  const jobs::TokenFileHeader& header = file.header();
  const int64_t pairs = header.num_documents / 2;
  const auto [to, is_new] = values_.try_emplace(header.contents);
  if (!is_new) return absl::OkStatus();
  to->second = {.dtype = context_.spec().dtype, .tokens = header.contents};
  to->second.pairs.assign(static_cast<size_t>(pairs), NotComputed());
  absl::StatusOr<std::string> text = std::string();
  const std::string name = jobs::ReferenceFile(header.contents);
  if (context_.leads()) {
    text = checkpoint::ReadWholeFile(checkpoints_, name, ReferenceFileBytes(pairs));
    if (absl::IsNotFound(text.status())) text = std::string();
    if (absl::IsInvalidArgument(text.status())) text = std::string("larger than it can be");
  }
  ASSIGN_OR_RETURN(const std::string bytes, context_.AgreeOnText(text));
  if (bytes.empty()) return absl::OkStatus();
  absl::StatusOr<ReferenceValues> read = DecodeReferences(bytes);
  if (read.ok() && read->dtype == to->second.dtype && read->tokens == header.contents &&
      std::ssize(read->pairs) == pairs) {
    to->second = *std::move(read);
    return absl::OkStatus();
  }
  context_.Warn(absl::StrCat(name, ": ", read.ok() ? "is of other data" : read.status().message(),
                             "; log probabilities of the reference are computed anew"));
  return absl::OkStatus();
}

absl::Status JobReferences::FindMissing(DataSource* source, const std::string& what, const std::vector<bool>& wanted) {
  Missing missing = {.source = source, .what = what};
  for (int64_t window = 0; window < source->num_windows(); ++window) {
    if (!wanted[static_cast<size_t>(window)]) continue;
    ASSIGN_OR_RETURN(const std::vector<int64_t> pairs, source->PairsOf(window));
    if (std::all_of(pairs.begin(), pairs.end(), [&](int64_t pair) { return IsComputed(Of(*source, pair)); })) continue;
    missing.windows.push_back(window);
  }
  if (!missing.windows.empty()) missing_.push_back(std::move(missing));
  return absl::OkStatus();
}

absl::Status JobReferences::Read(const TrainerState& start) {
  const jobs::JobSpec& spec = context_.spec();
  for (const auto& [source, what] : Sources()) {
    for (const TokenFile& file : source->files()) RETURN_IF_ERROR(ReadFile(file));
  }
  absl::Status found = absl::OkStatus();
  for (const auto& [source, what] : Sources()) {
    const bool training = source == data_.training.get();
    const int64_t steps = std::clamp<int64_t>(spec.steps - start.step, 0, kMostSamples + 1);
    const int64_t samples = steps * spec.batch_sequences;
    const std::vector<bool> wanted = training ? WantedWindows(*source, start.sample, samples)
                                              : std::vector<bool>(static_cast<size_t>(source->num_windows()), true);
    if (found.ok()) found = FindMissing(source, what, wanted);
  }
  return context_.AgreeOn(OfData(found, /*were_right=*/true));
}

// Values of two references would be mixed.
absl::Status JobReferences::SetBase(const std::string& base) {
  base_ = base;
  for (const auto& [contents, values] : values_) {
    if (values.base.empty() || values.base == base) continue;
    return Blocked(absl::FailedPreconditionError(
        absl::StrCat("base_checkpoint: ", context_.spec().base_checkpoint, " has other weights than when ",
                     jobs::ReferenceFile(contents),
                     " was made, which has the log probabilities of the job's reference; restore its files, or remove "
                     "that file to have all of them computed anew")));
  }
  return absl::OkStatus();
}

absl::Status JobReferences::Compute(Trainer* trainer) {
  written_ = absl::Now();
  while (!missing_.empty()) {
    ASSIGN_OR_RETURN(const bool done, ComputeWindows(trainer, missing_.front()));
    if (!done) return absl::OkStatus();
    missing_.erase(missing_.begin());
  }
  context_.notes().Stage("has all log probabilities of the reference");
  return absl::OkStatus();
}

absl::StatusOr<bool> JobReferences::ComputeWindows(Trainer* trainer, const Missing& missing) {
  DataSource& source = *missing.source;
  own_.assign(3 * static_cast<size_t>(source.first_pairs().back()), 0);
  const int64_t micro = context_.micro_batch_sequences(), world = context_.comm()->world();
  const auto count = static_cast<int64_t>(missing.windows.size());
  for (int64_t done = 0; done < count; done += micro * world) {
    const int64_t first = std::min(count, done + context_.comm()->rank() * micro);
    const int64_t end = std::min(count, first + micro);
    absl::StatusOr<TrainRows> rows = source.Windows(
        absl::MakeConstSpan(missing.windows).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
    RankWord word;
    word.stop = static_cast<int32_t>(context_.stop());
    word.number = context_.leads() && absl::Now() - written_ > kWriteEvery ? 1 : 0;
    word.SetStatus(OfData(rows.status(), /*were_right=*/true));
    ASSIGN_OR_RETURN(const std::vector<RankWord> words,
                     ExchangeWords(context_.comm(), word, context_.input().step_limit));
    if (const absl::Status error = FirstError(words); !error.ok()) {
      context_.set_agreed(true);
      return error;
    }
    const bool stops = std::any_of(words.begin(), words.end(), [](const RankWord& each) { return each.stop != 0; });
    if (stops || words[0].number == 1) RETURN_IF_ERROR(Share(source));
    if (stops) return false;
    ASSIGN_OR_RETURN(const std::vector<PairLogProbs> pairs,
                     trainer->LogProbs(*rows, absl::Now() + context_.input().step_limit));
    for (size_t i = 0; i < pairs.size(); ++i) {
      double* const to = own_.data() + 3 * rows->pairs[i];
      to[0] = pairs[i].chosen;
      to[1] = pairs[i].rejected;
      to[2] = 1;
    }
    context_.notes().Note(absl::StrCat("log probabilities of the reference: ", std::min(count, done + micro * world),
                                       " of ", count, " windows of ", missing.what));
  }
  RETURN_IF_ERROR(Share(source));
  return true;
}

absl::Status JobReferences::Share(const DataSource& source) {
  comm::Communicator* const comm = context_.comm();
  const auto total = static_cast<int64_t>(own_.size());
  std::vector<double> sums = own_;
  for (int64_t at = 0; comm->world() > 1 && at < total; at += kSumAtOnce) {
    const TensorView part(sums.data() + at, DType::kF64, {std::min(kSumAtOnce, total - at)});
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> work,
                     comm->AllReduceSum({.stream = &context_.stream(),
                                         .comm_class = comm::CommClass::kAllReduce,
                                         .deadline = absl::Now() + context_.input().step_limit},
                                        part));
    RETURN_IF_ERROR(work->Wait());
  }
  for (size_t pair = 0; 3 * pair < sums.size(); ++pair) {
    if (sums[3 * pair + 2] != 1) continue;  // a pair is in one window
    const size_t file = FileOf(source, static_cast<int64_t>(pair));
    ReferenceValues& values = values_.at(source.files()[file].header().contents);
    values.base = base_;
    values.pairs[pair - static_cast<size_t>(source.first_pairs()[file])] = {sums[3 * pair], sums[3 * pair + 1]};
  }
  absl::Status written = absl::OkStatus();
  for (const TokenFile& file : source.files()) {
    const ReferenceValues& values = values_.at(file.header().contents);
    if (!context_.leads() || !written.ok() || values.base.empty()) continue;
    const std::string name = jobs::ReferenceFile(values.tokens);
    written = LostIfNot(checkpoint::ReplaceFile(checkpoints_, name,
                                                absl::StrCat(name, checkpoint::kUnfinished, context_.input().attempt),
                                                EncodeReferences(values)));
  }
  written_ = absl::Now();
  return context_.AgreeOn(written);
}

}  // namespace switchyard::train
