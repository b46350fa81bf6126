#include "server/jobs/pack/token_header.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {
namespace {

// As much as there is.
absl::StatusOr<size_t> ReadAt(int fd, const std::string& name, int64_t begin, absl::Span<char> to) {
  ssize_t read = -1;
  do {
    read = pread(fd, to.data(), to.size(), begin);
  } while (read < 0 && errno == EINTR);
  if (read < 0) return absl::UnavailableError(absl::StrCat(Quote(name), ": ", std::strerror(errno)));
  return static_cast<size_t>(read);
}

}  // namespace

absl::StatusOr<jobs::TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name) {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, root.OpenFile(name));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat st = {};
  fstat(fd, &st);
  std::string first(static_cast<size_t>(std::min<int64_t>(st.st_size, jobs::kLlmcHeaderBytes)), '\0');
  size_t read = 0;
  ASSIGN_OR_RETURN(read, ReadAt(fd, name, 0, absl::MakeSpan(first.data(), first.size())));
  first.resize(read);
  absl::StatusOr<jobs::TokenFileHeader> header = jobs::DecodeTokenHeader(first, st.st_size);
  if (header.ok()) return header;
  return absl::Status(header.status().code(), absl::StrCat(Quote(name), ": ", header.status().message()));
}

absl::StatusOr<bool> ReadHasTarget(const RootDir& root, const std::string& name, const jobs::TokenFileHeader& header,
                                   int64_t length) {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, root.OpenFile(name));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  return jobs::HasTarget(header, length, [&](int64_t begin, absl::Span<char> to) -> absl::Status {
    for (size_t done = 0; done < to.size();) {
      size_t read = 0;
      ASSIGN_OR_RETURN(read, ReadAt(fd, name, begin + static_cast<int64_t>(done), to.subspan(done)));
      if (read == 0) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": ends within its mask"));
      done += read;
    }
    return absl::OkStatus();
  });
}

}  // namespace switchyard::server
