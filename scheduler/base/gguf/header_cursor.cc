#include "scheduler/base/gguf/header_cursor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr int64_t kFirstRead = 64 << 10;

}  // namespace

absl::Status HeaderCursor::Skip(uint64_t bytes, absl::string_view what) {
  if (bytes > static_cast<uint64_t>(file_bytes_ - at_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected ", bytes, " bytes at byte ", at_, ", the file ends at byte ", file_bytes_));
  }
  const int64_t end = at_ + static_cast<int64_t>(bytes);
  if (end > max_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the header reaches byte ", end, ", limit ", max_bytes_));
  }
  const auto have = static_cast<int64_t>(bytes_.size());
  if (end > have) {
    const int64_t grown = std::min({std::max({end, 2 * have, kFirstRead}), file_bytes_, max_bytes_});
    bytes_.resize(static_cast<size_t>(grown));
    RETURN_IF_ERROR(read_(have, absl::MakeSpan(bytes_).subspan(static_cast<size_t>(have))));
  }
  at_ = end;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> HeaderCursor::NextLength(int64_t max_bytes, absl::string_view what) {
  ASSIGN_OR_RETURN(const uint64_t length, Next<uint64_t>(what));
  if (length <= static_cast<uint64_t>(max_bytes)) return static_cast<int64_t>(length);
  return absl::InvalidArgumentError(absl::StrCat(what, ": a text of ", length, " bytes, limit ", max_bytes));
}

absl::StatusOr<std::string> HeaderCursor::NextString(int64_t max_bytes, absl::string_view what) {
  ASSIGN_OR_RETURN(const int64_t length, NextLength(max_bytes, what));
  const int64_t begin = at_;
  RETURN_IF_ERROR(Skip(static_cast<uint64_t>(length), what));
  return std::string(Since(begin));
}

absl::Status HeaderCursor::SkipString(int64_t max_bytes, absl::string_view what) {
  ASSIGN_OR_RETURN(const int64_t length, NextLength(max_bytes, what));
  return Skip(static_cast<uint64_t>(length), what);
}

}  // namespace switchyard
