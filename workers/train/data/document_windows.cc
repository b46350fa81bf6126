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

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentWindows>> DocumentWindows::Create(
    absl::Span<const TokenFile> files, int64_t length, uint64_t seed,
    absl::FunctionRef<bool(int64_t, int64_t)> progress) {
  auto windows = std::unique_ptr<DocumentWindows>(new DocumentWindows(files, length, seed));
  RETURN_IF_ERROR(windows->CountWindows(progress));
  return windows;
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
      for (size_t d = 0; d + 1 < borders.size(); ++d) {
        const int64_t rows = borders[d + 1] - borders[d] - 1;
        num_rows_ += rows;
        num_cut_documents_ += rows > length_ ? 1 : 0;
      }
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

absl::StatusOr<DocumentWindows::Group> DocumentWindows::Pack(size_t file, int64_t group,
                                                             absl::Span<const int64_t> borders) const {
  Group packed;
  std::vector<DocumentPart> pieces;
  std::vector<int32_t> rows;
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    const int64_t all = borders[d + 1] - borders[d] - 1, whole = all / length_, rest = all % length_;
    if (whole > 0) packed.runs.push_back({packed.num_whole, borders[d]});
    packed.num_whole += whole;
    if (rest == 0) continue;
    pieces.push_back({borders[d] + whole * length_, rest});
    rows.push_back(static_cast<int32_t>(rest));
  }
  const uint64_t seed = SplitMix(seed_ ^ SplitMix((static_cast<uint64_t>(file) << 40) + static_cast<uint64_t>(group)));
  for (const std::vector<int32_t>& window : PackBestFit(rows, length_, seed)) {
    std::vector<DocumentPart>& parts = packed.packed.emplace_back();
    for (const int32_t piece : window) parts.push_back(pieces[static_cast<size_t>(piece)]);
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
