#include "server/jobs/pack/block_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr size_t kBlockBytes = 256 << 10;

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// First bytes of compressed files.
struct Compression {
  absl::string_view magic;
  const char* name;
};
constexpr Compression kCompressions[] = {{"\x1f\x8b", "gzip"}, {"\x28\xb5\x2f\xfd", "zstd"}, {"\xfd\x37zXZ", "xz"}};

v1::ErrorReason ReasonOf(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return v1::TEXT_LIMIT;
  if (absl::IsFailedPrecondition(status)) return v1::NO_CHAT_TEMPLATE;
  return v1::BAD_FILE;
}

absl::Status BadLine(const std::string& name, int64_t line, int64_t byte, const absl::Status& status) {
  if (absl::IsCancelled(status)) return status;
  return rpc::MakeError(status.code(), ReasonOf(status), AtLine(name, line, byte, status.message()),
                        {{"file", name}, {"line", absl::StrCat(line)}, {"byte", absl::StrCat(byte)}});
}

}  // namespace

absl::Status VisitLines(const std::string& name, const LineBlock& block, int64_t max_line_bytes,
                        absl::FunctionRef<absl::Status(absl::string_view)> visit) {
  absl::string_view rest = block.bytes;
  if (block.first_byte == 0) absl::ConsumePrefix(&rest, kByteOrderMark);
  for (int64_t number = block.first_line; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const absl::string_view line = absl::StripSuffix(rest.substr(0, end), "\r");
    const int64_t byte = block.first_byte + (rest.data() - block.bytes.data());
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const absl::Status status =
        line.size() <= static_cast<size_t>(max_line_bytes)
            ? visit(line)
            : absl::InvalidArgumentError(absl::StrCat("a line of ", line.size(), " bytes, limit ", max_line_bytes));
    if (!status.ok()) return BadLine(name, number, byte, status);
  }
  return absl::OkStatus();
}

absl::Status NoDocumentsError(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": has no documents"));
}

std::string AtLine(absl::string_view name, int64_t line, int64_t byte, absl::string_view what) {
  return absl::StrCat(name, ":", line, " (byte ", byte, "): ", what);
}

absl::StatusOr<BlockReader> BlockReader::Create(int fd, std::string name, int64_t max_line_bytes) {
  BlockReader reader(fd, std::move(name), max_line_bytes);
  if (fstat(fd, &reader.opened_) != 0) {
    return absl::DataLossError(absl::StrCat(reader.name_, ": ", std::strerror(errno)));
  }
  RETURN_IF_ERROR(reader.ReadMore());
  for (const Compression& compression : kCompressions) {
    if (absl::StartsWith(reader.waiting_, compression.magic)) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader.name_, ": is compressed (", compression.name, "); give the file that is in it"));
    }
  }
  return reader;
}

// Appends up to kBlockBytes to waiting_, up to the file's size when it was opened: growth is not followed.
absl::Status BlockReader::ReadMore() {
  const size_t had = waiting_.size();
  const auto most = static_cast<size_t>(std::min<int64_t>(kBlockBytes, opened_.st_size - at_));
  waiting_.resize(had + most);
  ssize_t count = 0;
  do {
    count = pread(fd_, waiting_.data() + had, most, at_);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return absl::DataLossError(absl::StrCat(name_, ": read at ", at_, ": ", std::strerror(errno)));
  waiting_.resize(had + static_cast<size_t>(count));
  at_ += count;
  return absl::OkStatus();
}

absl::Status BlockReader::CheckUnchanged() const {
  struct stat now = {};
  const bool same = fstat(fd_, &now) == 0 && now.st_size == opened_.st_size &&
                    now.st_mtim.tv_sec == opened_.st_mtim.tv_sec && now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
  if (same) return absl::OkStatus();
  return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED,
                        absl::StrCat(name_, ": changed while it was read: ", now.st_size, " bytes, it had ",
                                     opened_.st_size, " when it was opened"));
}

absl::StatusOr<LineBlock> BlockReader::Next() {
  LineBlock block = {.bytes = {}, .first_line = next_line_, .first_byte = at_ - static_cast<int64_t>(waiting_.size())};
  size_t end = waiting_.rfind('\n');
  while (end == std::string::npos) {
    const size_t had = waiting_.size();
    RETURN_IF_ERROR(ReadMore());
    if (waiting_.size() == had) {  // the end of the file, perhaps with a last line
      RETURN_IF_ERROR(CheckUnchanged());
      block.bytes = std::exchange(waiting_, {});
      return block;
    }
    end = waiting_.rfind('\n');
    const size_t first_line_bytes = std::min(waiting_.find('\n', had), waiting_.size());
    if (first_line_bytes > static_cast<size_t>(max_line_bytes_)) {
      return absl::InvalidArgumentError(
          AtLine(name_, next_line_, block.first_byte, absl::StrCat("a line of more than ", max_line_bytes_, " bytes")));
    }
  }
  block.bytes = waiting_.substr(0, end + 1);
  waiting_.erase(0, end + 1);
  next_line_ += std::count(block.bytes.begin(), block.bytes.end(), '\n');
  return block;
}

}  // namespace switchyard::server
