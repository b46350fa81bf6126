#include "server/training/pack/token_header.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

absl::StatusOr<TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name) {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, root.OpenFile(name));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat st = {};
  fstat(fd, &st);
  std::string first(static_cast<size_t>(std::min<int64_t>(st.st_size, kLlmcHeaderBytes)), '\0');
  ssize_t read = -1;
  do {
    read = pread(fd, first.data(), first.size(), 0);
  } while (read < 0 && errno == EINTR);
  if (read < 0) return absl::UnavailableError(absl::StrCat(Quote(name), ": ", std::strerror(errno)));
  first.resize(static_cast<size_t>(read));
  absl::StatusOr<TokenFileHeader> header = DecodeTokenHeader(first, st.st_size);
  if (header.ok()) return header;
  return absl::Status(header.status().code(), absl::StrCat(Quote(name), ": ", header.status().message()));
}

}  // namespace switchyard
