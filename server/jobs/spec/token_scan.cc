#include "server/jobs/spec/token_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;  // a multiple of any token's bytes

}  // namespace

absl::Status ScanTokens(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                        int64_t vocab, int64_t max_bytes) {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, root.OpenFile(name));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const int64_t end = std::min(header.num_tokens, max_bytes / header.token_bytes) * header.token_bytes;
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunkBytes, end)));
  for (int64_t done = 0; done < end;) {
    const auto wanted = static_cast<size_t>(std::min(kChunkBytes, end - done));
    const ssize_t count = pread(fd, chunk.data(), wanted, header.tokens_at() + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat(Quote(name), ": ", std::strerror(errno)));
    const int64_t whole = count / header.token_bytes * header.token_bytes;
    if (whole == 0) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ends within its tokens"));
    const absl::string_view bytes(chunk.data(), static_cast<size_t>(whole));
    const absl::Status inside = jobs::CheckTokens(bytes, done / header.token_bytes, header.token_bytes, vocab);
    if (!inside.ok()) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ", inside.message()));
    done += whole;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
