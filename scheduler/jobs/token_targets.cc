#include "scheduler/jobs/token_targets.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jobs {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

}  // namespace

absl::StatusOr<bool> HasTarget(const TokenFileHeader& header, int64_t length, ReadTokenBytes read) {
  const int64_t last = (header.num_tokens - 1) / length * length;  // of the last whole window
  if (last < 1 || !header.masked) return last >= 1;
  const int64_t end = last / 8 + 1;  // of the mask's bytes
  std::vector<char> piece(static_cast<size_t>(std::min(kPieceBytes, end)));
  for (int64_t begin = 0; begin < end; begin += kPieceBytes) {
    const absl::Span<char> bytes =
        absl::MakeSpan(piece).subspan(0, static_cast<size_t>(std::min(kPieceBytes, end - begin)));
    RETURN_IF_ERROR(read(header.mask_at() + begin, bytes));
    if (begin == 0) bytes[0] = static_cast<char>(bytes[0] & ~1);  // token 0 follows nothing
    if (begin + kPieceBytes >= end) bytes.back() = static_cast<char>(bytes.back() & (0xff >> (7 - last % 8)));
    if (std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; })) return true;
  }
  return false;
}

absl::Status NoTargetError(size_t files, int64_t tokens, int64_t length) {
  return absl::InvalidArgumentError(absl::StrCat("none of the ", tokens, " tokens of ", files,
                                                 files == 1 ? " file" : " files", " is a target in a window of ",
                                                 length,
                                                 " tokens, at least 1 is wanted: use data whose mask marks what is "
                                                 "trained (`switchyard data pack` says how much)"));
}

}  // namespace switchyard::jobs
