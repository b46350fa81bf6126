#include "workers/train/data/data_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::Create(std::vector<TokenFile> files,
                                                               const DataOptions& options) {
  if (options.length < 1)
    return absl::InvalidArgumentError(absl::StrCat("data: windows of ", options.length, " tokens"));
  std::vector<int64_t> first_window = {0};
  int64_t tokens = 0;
  for (const TokenFile& file : files) {
    tokens += file.header().num_tokens;
    first_window.push_back(first_window.back() + (file.header().num_tokens - 1) / options.length);
  }
  if (first_window.back() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data: ", files.size(), " files of ", tokens,
                                                   " tokens hold no window of ", options.length,
                                                   " and its last target"));
  }
  return std::unique_ptr<DataSource>(new DataSource(std::move(files), options, std::move(first_window)));
}

int64_t DataSource::num_tokens() const {
  int64_t tokens = 0;
  for (const TokenFile& file : files_) tokens += file.header().num_tokens;
  return tokens;
}

absl::StatusOr<bool> DataSource::HasTarget(absl::FunctionRef<bool(int64_t, int64_t)> progress) const {
  for (const TokenFile& file : files_) {
    ASSIGN_OR_RETURN(const bool found,
                     file.HasTarget({.length = options_.length, .document_mask = options_.document_mask}, progress));
    if (found) return true;
  }
  return false;
}

absl::Status DataSource::Append(int64_t window, TrainRows* rows) const {
  const auto behind = std::upper_bound(first_window_.begin(), first_window_.end(), window);
  const size_t file = static_cast<size_t>(behind - first_window_.begin()) - 1;
  const int64_t first = (window - first_window_[file]) * options_.length;
  std::vector<int32_t> tokens(static_cast<size_t>(options_.length) + 1);
  std::vector<uint8_t> trained(tokens.size());
  RETURN_IF_ERROR(files_[file].Read(first, absl::MakeSpan(tokens), absl::MakeSpan(trained)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < options_.vocab) continue;
    return absl::InvalidArgumentError(absl::StrCat(files_[file].name(), ": token ", first + static_cast<int64_t>(i),
                                                   " is ", static_cast<uint32_t>(tokens[i]), ", outside [0, ",
                                                   options_.vocab, ")"));
  }
  rows->tokens.insert(rows->tokens.end(), tokens.begin(), tokens.end() - 1);
  for (size_t i = 1; i < tokens.size(); ++i) rows->targets.push_back(trained[i] != 0 ? tokens[i] : -1);
  return options_.document_mask ? AppendBorders(files_[file], first, tokens, rows) : absl::OkStatus();
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

absl::StatusOr<TrainRows> DataSource::Samples(int64_t first, int64_t count) const {
  TrainRows rows = {.length = options_.length, .tokens = {}, .targets = {}, .borders = {}};
  for (int64_t sample = first; sample < first + count; ++sample) {
    RETURN_IF_ERROR(Append(options_.in_order ? sample % num_windows() : order_.WindowOf(sample), &rows));
  }
  return rows;
}

}  // namespace switchyard::train
