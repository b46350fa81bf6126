#include "workers/train/data/data_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::Create(std::vector<TokenFile> files,
                                                               const DataOptions& options) {
  if (options.length < 1)
    return absl::InvalidArgumentError(absl::StrCat("data: windows of ", options.length, " tokens"));
  if (!options.weights.empty() && options.weights.size() != files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", options.weights.size(), " weights of ", files.size(), " files"));
  }
  auto source = std::unique_ptr<DataSource>(new DataSource(std::move(files), options));
  RETURN_IF_ERROR(source->CountWindows());
  RETURN_IF_ERROR(source->MakeOrders());
  return source;
}

absl::Status DataSource::CountWindows() {
  if (options_.packing == jobs::WindowPacking::kConcatenate) {
    for (const TokenFile& file : files_) {
      first_window_.push_back(first_window_.back() + (file.header().num_tokens - 1) / options_.length);
    }
  } else {
    const auto progress = [this](int64_t done, int64_t total) {
      return !options_.progress || options_.progress(done, total);
    };
    ASSIGN_OR_RETURN(documents_, DocumentWindows::Create(files_, options_.length, options_.seed, progress));
    const absl::Span<const int64_t> windows = documents_->first_windows();
    first_window_.assign(windows.begin(), windows.end());
  }
  for (const TokenFile& file : files_) {
    if (file.header().pairs && !of_pairs()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: ", file.name(), " has pairs of answers, which go with packing best_fit alone"));
    }
    first_pair_.push_back(first_pair_.back() + (file.header().pairs ? file.header().num_documents / 2 : 0));
  }
  if (first_window_.back() > 0) return absl::OkStatus();
  if (of_pairs()) {
    return absl::InvalidArgumentError(absl::StrCat("data: none of ", first_pair_.back(), " pairs of answers in ",
                                                   files_.size(), " files fits into sequence_length ", options_.length,
                                                   ", which has to hold the prompt twice and both answers"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("data: ", files_.size(), " files of ", num_tokens(), " tokens hold no ",
                   documents_ == nullptr ? absl::StrCat("window of ", options_.length, " and its last target")
                                         : "document of 2 tokens or more"));
}

absl::Status DataSource::MakeOrders() {
  if (options_.weights.empty()) {
    orders_.emplace_back(options_.seed, num_windows());
    return absl::OkStatus();
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    const int64_t windows = first_window_[f + 1] - first_window_[f];
    if (windows == 0) {
      return jobs::NoWindowError(absl::StrCat("data: ", files_[f].name()), files_[f].header().num_tokens,
                                 options_.length);
    }
    // (The same file twice has two orders.)
    orders_.emplace_back(options_.seed ^ SplitMix(f + 1), windows);
  }
  mixture_.emplace(options_.weights);
  return absl::OkStatus();
}

DataSource::Place DataSource::PlaceOf(int64_t sample) const {
  if (mixture_.has_value()) {
    const MixtureOrder::Sample of = mixture_->Of(sample);
    const auto file = static_cast<size_t>(of.dataset);
    return {file, first_window_[file] + orders_[file].WindowOf(of.index)};
  }
  return PlaceOfWindow(options_.in_order ? sample % num_windows() : orders_[0].WindowOf(sample));
}

DataSource::Place DataSource::PlaceOfWindow(int64_t window) const {
  const auto behind = std::upper_bound(first_window_.begin(), first_window_.end(), window);
  return {static_cast<size_t>(behind - first_window_.begin()) - 1, window};
}

std::string DataSource::ToString() const {
  const std::string windows = absl::StrCat(num_windows(), " sequences of ", options_.length, " tokens");
  if (documents_ == nullptr) return windows;
  const int64_t rows = documents_->num_rows();
  const double padding = 1 - static_cast<double>(rows) / static_cast<double>(num_windows() * options_.length);
  if (of_pairs()) {
    return absl::StrFormat("%s from %d pairs, %d of them longer and left out; %.1f %% of the sequences is padding",
                           windows, first_pair_.back(), documents_->num_left_out_pairs(), 100 * padding);
  }
  return absl::StrFormat("%s from %d documents, %d of them longer and cut; %.1f %% of the sequences is padding",
                         windows, documents_->num_documents(), documents_->num_cut_documents(), 100 * padding);
}

int64_t DataSource::num_tokens() const {
  int64_t tokens = 0;
  for (const TokenFile& file : files_) tokens += file.header().num_tokens;
  return tokens;
}

absl::StatusOr<bool> DataSource::HasTarget(absl::FunctionRef<bool(int64_t, int64_t)> progress) const {
  for (const TokenFile& file : files_) {
    const int64_t length = documents_ == nullptr ? options_.length : 1;  // (TargetSearchOf)
    ASSIGN_OR_RETURN(const bool found,
                     file.HasTarget({.length = length, .document_mask = options_.document_mask}, progress));
    if (found) return true;
  }
  return false;
}

absl::Status DataSource::ReadTokens(const TokenFile& file, int64_t first, std::vector<int32_t>* tokens,
                                    std::vector<uint8_t>* trained) const {
  trained->resize(tokens->size());
  RETURN_IF_ERROR(file.Read(first, absl::MakeSpan(*tokens), absl::MakeSpan(*trained)));
  for (size_t i = 0; i < tokens->size(); ++i) {
    const int32_t token = (*tokens)[i];
    if (token >= 0 && token < options_.vocab) continue;
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": token ", first + static_cast<int64_t>(i), " is ",
                                                   static_cast<uint32_t>(token), ", outside [0, ", options_.vocab,
                                                   ")"));
  }
  return absl::OkStatus();
}

absl::Status DataSource::Append(const Place& place, TrainRows* rows) const {
  const TokenFile& file = files_[place.file];
  const int64_t first = (place.window - first_window_[place.file]) * options_.length;
  std::vector<int32_t> tokens(static_cast<size_t>(options_.length) + 1);
  std::vector<uint8_t> trained;
  RETURN_IF_ERROR(ReadTokens(file, first, &tokens, &trained));
  rows->tokens.insert(rows->tokens.end(), tokens.begin(), tokens.end() - 1);
  for (size_t i = 1; i < tokens.size(); ++i) rows->targets.push_back(trained[i] != 0 ? tokens[i] : -1);
  return options_.document_mask ? AppendBorders(file, first, tokens, rows) : absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> DataSource::PairsOf(int64_t window) {
  std::vector<int64_t> pairs;
  if (!of_pairs()) return pairs;
  const Place place = PlaceOfWindow(window);
  ASSIGN_OR_RETURN(const std::vector<DocumentPart> parts, documents_->PartsOf(place.file, place.window));
  for (size_t i = 0; i < parts.size(); i += 2) pairs.push_back(first_pair_[place.file] + parts[i].pair);
  return pairs;
}

absl::Status DataSource::AppendPacked(const Place& place, TrainRows* rows) {
  ASSIGN_OR_RETURN(const std::vector<DocumentPart> parts, documents_->PartsOf(place.file, place.window));
  std::vector<int32_t> tokens;
  std::vector<uint8_t> trained;
  for (size_t i = 0; of_pairs() && i < parts.size(); i += 2) {
    rows->pairs.push_back(first_pair_[place.file] + parts[i].pair);
  }
  rows->begins.push_back(static_cast<int32_t>(rows->tokens.size()));
  for (const DocumentPart& part : parts) {
    tokens.resize(static_cast<size_t>(part.rows) + 1);
    RETURN_IF_ERROR(ReadTokens(files_[place.file], part.first, &tokens, &trained));
    if (!rows->tokens.empty()) rows->borders.push_back(static_cast<int32_t>(rows->tokens.size()));
    rows->tokens.insert(rows->tokens.end(), tokens.begin(), tokens.end() - 1);
    for (size_t i = 1; i < tokens.size(); ++i) rows->targets.push_back(trained[i] != 0 ? tokens[i] : -1);
  }
  return absl::OkStatus();
}

// tokens: of the window that was appended last, with its last target.
absl::Status DataSource::AppendBorders(const TokenFile& file, int64_t first, absl::Span<const int32_t> tokens,
                                       TrainRows* rows) const {
  std::vector<int64_t> begins;
  RETURN_IF_ERROR(file.AppendBegins(first, tokens, &begins));
  const auto window = static_cast<int64_t>(rows->tokens.size()) - options_.length;
  for (const int64_t begin : begins) {
    const int64_t i = begin - first;
    if (i == 0) continue;  // a window's begin is a border anyway
    rows->targets[static_cast<size_t>(window + i - 1)] = -1;
    if (i < options_.length) rows->borders.push_back(static_cast<int32_t>(window + i));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainRows> DataSource::Samples(int64_t first, int64_t count) {
  TrainRows rows = {.length = options_.length, .packed = documents_ != nullptr};
  for (int64_t sample = first; sample < first + count; ++sample) {
    RETURN_IF_ERROR(AppendWindow(PlaceOf(sample), &rows));
  }
  return rows;
}

absl::StatusOr<TrainRows> DataSource::Windows(absl::Span<const int64_t> windows) {
  TrainRows rows = {.length = options_.length, .packed = documents_ != nullptr};
  for (const int64_t window : windows) RETURN_IF_ERROR(AppendWindow(PlaceOfWindow(window), &rows));
  return rows;
}

absl::Status DataSource::AppendWindow(const Place& place, TrainRows* rows) {
  return documents_ != nullptr ? AppendPacked(place, rows) : Append(place, rows);
}

}  // namespace switchyard::train
