#include "proto/support/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard::rpc {
namespace {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes, bool is_secret) {
  const auto wrong = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
  struct stat st;
  if (fstat(file.get(), &st) != 0) return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
  if (!S_ISREG(st.st_mode)) return wrong("not a regular file");
  if (is_secret && st.st_uid != geteuid()) return wrong("belongs to another user than this process's");
  if (is_secret && (st.st_mode & 077) != 0) {
    return wrong(absl::StrFormat("others than its owner may use it (mode %04o): chmod 600 it", st.st_mode & 07777));
  }
  std::string bytes(max_bytes + 1, '\0');
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + length, bytes.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  if (length > max_bytes) return wrong(absl::StrCat("at most ", max_bytes, " bytes, has more"));
  bytes.resize(length);
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t max_bytes) {
  return ReadRegularFile(path, max_bytes, /*is_secret=*/true);
}

absl::StatusOr<std::string> ReadPublicFile(const std::string& path, size_t max_bytes) {
  return ReadRegularFile(path, max_bytes, /*is_secret=*/false);
}

}  // namespace switchyard::rpc
