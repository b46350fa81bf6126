#include "server/jobs/pack/token_header.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;  // a multiple of any token's bytes

// Reads until `to` is full or the file ends.
absl::StatusOr<size_t> ReadAt(int fd, const std::string& name, int64_t begin, absl::Span<char> to) {
  ssize_t read = -1;
  do {
    read = pread(fd, to.data(), to.size(), begin);
  } while (read < 0 && errno == EINTR);
  if (read < 0) return absl::UnavailableError(absl::StrCat(Quote(name), ": ", std::strerror(errno)));
  return static_cast<size_t>(read);
}

absl::StatusOr<UniqueFd> Open(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFile(name));
  return UniqueFd(fd);
}

}  // namespace

absl::StatusOr<jobs::TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(root, name));
  struct stat st = {};
  fstat(fd.get(), &st);
  std::string first(static_cast<size_t>(std::min<int64_t>(st.st_size, jobs::kLlmcHeaderBytes)), '\0');
  ASSIGN_OR_RETURN(const size_t read, ReadAt(fd.get(), name, 0, absl::MakeSpan(first.data(), first.size())));
  first.resize(read);
  absl::StatusOr<jobs::TokenFileHeader> header = jobs::DecodeTokenHeader(first, st.st_size);
  if (header.ok()) return header;
  return absl::Status(header.status().code(), absl::StrCat(Quote(name), ": ", header.status().message()));
}

absl::StatusOr<bool> ReadHasTarget(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                                   const jobs::TargetSearch& search) {
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(root, name));
  return jobs::HasTarget(header, search, [&](int64_t begin, absl::Span<char> to) -> absl::Status {
    for (size_t done = 0; done < to.size();) {
      ASSIGN_OR_RETURN(const size_t read, ReadAt(fd.get(), name, begin + static_cast<int64_t>(done), to.subspan(done)));
      if (read == 0) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ends within its mask"));
      done += read;
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> ReadHasFittingPair(const RootDir& root, const std::string& name,
                                        const jobs::TokenFileHeader& header, int64_t length, int64_t max_bytes) {
  constexpr int64_t kPairsAtOnce = 1 << 15;
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(root, name));
  const int64_t pairs = header.num_documents / 2;
  const auto limit = static_cast<uint64_t>(length), tokens = static_cast<uint64_t>(header.num_tokens);
  std::vector<char> bytes;
  for (int64_t first = 0; first < pairs; first += kPairsAtOnce) {
    if (16 * first >= max_bytes) return true;
    // With the begin of the pair behind them.
    bytes.resize(static_cast<size_t>(8 * std::min(2 * kPairsAtOnce + 1, header.num_documents - 2 * first)));
    ASSIGN_OR_RETURN(const size_t read,
                     ReadAt(fd.get(), name, header.documents_at() + 16 * first, absl::MakeSpan(bytes)));
    if (read < bytes.size())
      return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ends within its documents"));
    for (size_t at = 0; at + 16 <= bytes.size(); at += 16) {
      const auto begin = LoadInt<uint64_t>(&bytes[at]), middle = LoadInt<uint64_t>(&bytes[at + 8]);
      const uint64_t end = at + 16 < bytes.size() ? LoadInt<uint64_t>(&bytes[at + 16]) : tokens;
      const bool rising = begin < middle && middle < end && end <= tokens;
      if (rising && middle - begin > 1 && end - middle > 1 && end - begin - 2 <= limit) return true;
    }
  }
  return false;
}

absl::Status ScanTokens(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                        int64_t vocab, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(root, name));
  const int64_t end = std::min(header.num_tokens, max_bytes / header.token_bytes) * header.token_bytes;
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunkBytes, end)));
  for (int64_t done = 0; done < end;) {
    const auto wanted = static_cast<size_t>(std::min(kChunkBytes, end - done));
    ASSIGN_OR_RETURN(const size_t read,
                     ReadAt(fd.get(), name, header.tokens_at() + done, absl::MakeSpan(chunk).first(wanted)));
    const int64_t whole = static_cast<int64_t>(read) / header.token_bytes * header.token_bytes;
    if (whole == 0) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ends within its tokens"));
    const absl::string_view bytes(chunk.data(), static_cast<size_t>(whole));
    const absl::Status inside = jobs::CheckTokens(bytes, done / header.token_bytes, header.token_bytes, vocab);
    if (!inside.ok()) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ", inside.message()));
    done += whole;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
