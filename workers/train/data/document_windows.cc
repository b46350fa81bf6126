#include "workers/train/data/document_windows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/data/best_fit.h"

namespace switchyard::train {
namespace {

constexpr size_t kUsedGroups = 64;
static_assert(kDocumentsOfGroup % 2 == 0);  // a pair is in one group

// Of the documents that begin at borders[d] and borders[d + 1]; 0: the pair is left out.
int64_t PairRows(absl::Span<const int64_t> borders, size_t d, int64_t length) {
  const int64_t chosen = borders[d + 1] - borders[d] - 1, rejected = borders[d + 2] - borders[d + 1] - 1;
  return chosen > 0 && rejected > 0 && chosen + rejected <= length ? chosen + rejected : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentWindows>> DocumentWindows::Create(
    absl::Span<const TokenFile> files, int64_t length, uint64_t seed,
    absl::FunctionRef<bool(int64_t, int64_t)> progress) {
  auto windows = std::unique_ptr<DocumentWindows>(new DocumentWindows(files, length, seed));
  RETURN_IF_ERROR(windows->CheckKinds());
  RETURN_IF_ERROR(windows->CountWindows(progress));
  return windows;
}

absl::Status DocumentWindows::CheckKinds() {
  for (const TokenFile& file : files_) {
    of_pairs_ = files_[0].header().pairs;  // (There may be no file at all.)
    if (file.header().pairs == of_pairs_) continue;
    const auto kind = [](const TokenFile& of) { return of.header().pairs ? " has pairs of answers" : " has none"; };
    return absl::InvalidArgumentError(
        absl::StrCat(files_[0].name(), kind(files_[0]), ", ", file.name(), kind(file), "; all files or none may"));
  }
  return absl::OkStatus();
}

int64_t DocumentWindows::NumDocuments(size_t file) const {
  return found_begins_[file].empty() ? files_[file].header().num_documents
                                     : static_cast<int64_t>(found_begins_[file].size());
}

absl::Status DocumentWindows::CountWindows(absl::FunctionRef<bool(int64_t, int64_t)> progress) {
  int64_t total = 0, done = 0;
  for (const TokenFile& file : files_) total += file.begins_bytes();
  found_begins_.resize(files_.size());
  for (size_t f = 0; f < files_.size(); ++f) {
    const TokenFile& file = files_[f];
    if (file.header().document_token >= 0) {
      ASSIGN_OR_RETURN(found_begins_[f], file.FindBegins([&](int64_t bytes) { return progress(done + bytes, total); }));
    }
    const int64_t documents = NumDocuments(f);
    const int64_t groups = (documents + kDocumentsOfGroup - 1) / kDocumentsOfGroup;
    int64_t windows = first_windows_.back();
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * kDocumentsOfGroup;
      ASSIGN_OR_RETURN(const std::vector<int64_t> borders,
                       BordersOf(f, first, std::min(kDocumentsOfGroup, documents - first)));
      ASSIGN_OR_RETURN(const Group group, Pack(f, g, borders));
      group_windows_.push_back(windows);
      windows += group.num_windows();
      Count(borders);
      if (!progress(done + file.begins_bytes() * (g + 1) / groups, total)) {
        return absl::CancelledError(absl::StrCat(file.name(), ": no longer wanted"));
      }
    }
    num_documents_ += documents;
    done += file.begins_bytes();
    first_windows_.push_back(windows);
    first_groups_.push_back(first_groups_.back() + groups);
  }
  return absl::OkStatus();
}

void DocumentWindows::Count(absl::Span<const int64_t> borders) {
  if (of_pairs_) {
    for (size_t d = 0; d + 2 < borders.size(); d += 2) {
      const int64_t rows = PairRows(borders, d, length_);
      num_rows_ += rows;
      num_left_out_pairs_ += rows == 0 ? 1 : 0;
    }
    return;
  }
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    const int64_t rows = borders[d + 1] - borders[d] - 1;
    num_rows_ += rows;
    num_cut_documents_ += rows > length_ ? 1 : 0;
  }
}

absl::StatusOr<std::vector<int64_t>> DocumentWindows::BordersOf(size_t file, int64_t first, int64_t count) const {
  const int64_t documents = NumDocuments(file);
  const bool last = first + count == documents;
  std::vector<int64_t> borders(static_cast<size_t>(last ? count : count + 1));
  if (found_begins_[file].empty()) {
    RETURN_IF_ERROR(files_[file].ReadBegins(first, absl::MakeSpan(borders)));
  } else {
    std::copy_n(found_begins_[file].begin() + first, borders.size(), borders.begin());
  }
  if (last) borders.push_back(files_[file].header().num_tokens);
  return borders;
}

DocumentWindows::Pieces DocumentWindows::PiecesOf(absl::Span<const int64_t> borders, Group* packed) const {
  Pieces pieces;
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    const int64_t all = borders[d + 1] - borders[d] - 1, whole = all / length_, rest = all % length_;
    if (whole > 0) packed->runs.push_back({packed->num_whole, borders[d]});
    packed->num_whole += whole;
    if (rest == 0) continue;
    pieces.parts.push_back({borders[d] + whole * length_, rest});
    pieces.rows.push_back(static_cast<int32_t>(rest));
  }
  return pieces;
}

DocumentWindows::Pieces DocumentWindows::PairsOf(int64_t group, absl::Span<const int64_t> borders) const {
  Pieces pieces;
  for (size_t d = 0; d + 2 < borders.size(); d += 2) {
    const int64_t rows = PairRows(borders, d, length_);
    if (rows == 0) continue;
    const int64_t pair = (group * kDocumentsOfGroup + static_cast<int64_t>(d)) / 2;
    for (size_t i = d; i < d + 2; ++i) pieces.parts.push_back({borders[i], borders[i + 1] - borders[i] - 1, pair});
    pieces.rows.push_back(static_cast<int32_t>(rows));
  }
  return pieces;
}

absl::StatusOr<DocumentWindows::Group> DocumentWindows::Pack(size_t file, int64_t group,
                                                             absl::Span<const int64_t> borders) const {
  Group packed;
  const Pieces pieces = of_pairs_ ? PairsOf(group, borders) : PiecesOf(borders, &packed);
  const size_t each = of_pairs_ ? 2 : 1;  // parts of a piece
  const uint64_t seed = SplitMix(seed_ ^ SplitMix((static_cast<uint64_t>(file) << 40) + static_cast<uint64_t>(group)));
  for (const std::vector<int32_t>& window : PackBestFit(pieces.rows, length_, seed)) {
    std::vector<DocumentPart>& parts = packed.packed.emplace_back();
    for (const int32_t piece : window) {
      const auto first = pieces.parts.begin() + static_cast<int64_t>(static_cast<size_t>(piece) * each);
      parts.insert(parts.end(), first, first + static_cast<int64_t>(each));
    }
  }
  return packed;
}

absl::StatusOr<DocumentWindows::Group*> DocumentWindows::GroupOf(size_t file, int64_t group) {
  const int64_t index = first_groups_[file] + group;
  ++uses_;
  for (Group& used : used_) {
    if (used.index != index) continue;
    used.last_used = uses_;
    return &used;
  }
  const int64_t first = group * kDocumentsOfGroup;
  ASSIGN_OR_RETURN(const std::vector<int64_t> borders,
                   BordersOf(file, first, std::min(kDocumentsOfGroup, NumDocuments(file) - first)));
  ASSIGN_OR_RETURN(Group packed, Pack(file, group, borders));
  packed.index = index;
  packed.last_used = uses_;
  if (used_.size() < kUsedGroups) return &used_.emplace_back(std::move(packed));
  const auto oldest = std::min_element(used_.begin(), used_.end(),
                                       [](const Group& a, const Group& b) { return a.last_used < b.last_used; });
  *oldest = std::move(packed);
  return &*oldest;
}

absl::StatusOr<std::vector<DocumentPart>> DocumentWindows::PartsOf(size_t file, int64_t window) {
  SY_CHECK(window >= first_windows_[file] && window < first_windows_[file + 1]);
  // The last group that begins at this window or before: groups without windows begin where the next one does.
  const auto begin = group_windows_.begin() + first_groups_[file],
             end = group_windows_.begin() + first_groups_[file + 1];
  const int64_t group = std::upper_bound(begin, end, window) - begin - 1;
  ASSIGN_OR_RETURN(const Group* const packed, GroupOf(file, group));
  const int64_t place = window - begin[group];
  // (The file has changed since its windows were counted.)
  if (place >= packed->num_windows()) {
    return absl::FailedPreconditionError(
        absl::StrCat(files_[file].name(), ": changed while it was read: documents from ", group * kDocumentsOfGroup,
                     " on have ", packed->num_windows(), " windows, window ", place, " is wanted"));
  }
  if (place >= packed->num_whole) return packed->packed[static_cast<size_t>(place - packed->num_whole)];
  const auto run = std::upper_bound(packed->runs.begin(), packed->runs.end(), place,
                                    [](int64_t at, const Run& each) { return at < each.first_window; }) -
                   1;
  return std::vector<DocumentPart>{{run->first + (place - run->first_window) * length_, length_}};
}

}  // namespace switchyard::train
