#include "server/training/pack/token_header.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

absl::StatusOr<TokenFileHeader> ReadTokenHeader(const RootDir& root, const std::string& name) {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, root.OpenFile(name));
  struct stat st = {};
  fstat(fd, &st);
  std::string first(static_cast<size_t>(std::min<int64_t>(st.st_size, kLlmcHeaderBytes)), '\0');
  const ssize_t read = pread(fd, first.data(), first.size(), 0);
  close(fd);
  first.resize(static_cast<size_t>(std::max<ssize_t>(read, 0)));
  absl::StatusOr<TokenFileHeader> header = DecodeTokenHeader(first, st.st_size);
  if (header.ok()) return header;
  return absl::Status(header.status().code(), absl::StrCat(Quote(name), ": ", header.status().message()));
}

}  // namespace switchyard
