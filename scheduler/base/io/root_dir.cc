#include "scheduler/base/io/root_dir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr int kTries = 100;

std::string Shown(const std::string& name) { return absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)), "\""); }

// Errors that say nothing of the file: its disk does not answer, or this process has no descriptor or memory left.
bool MayPass(int error) {
  constexpr int kErrors[] = {EIO,          ESTALE,    ENOTCONN,  ENODEV, ETIMEDOUT, EHOSTDOWN,
                             EHOSTUNREACH, ESHUTDOWN, EREMOTEIO, EMFILE, ENFILE,    ENOMEM};
  return std::find(std::begin(kErrors), std::end(kErrors), error) != std::end(kErrors);
}

}  // namespace

int OpenBeneath(int root_fd, const std::string& name, int flags, mode_t mode) {
  open_how how = {};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something was renamed on the way, so the kernel could not decide whether it led out.
  for (int tries = 0;; ++tries) {
    const int fd = static_cast<int>(syscall(SYS_openat2, root_fd, name.c_str(), &how, sizeof(how)));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR) || tries == kTries) return fd;
  }
}

size_t ReadWhole(int fd, char* to, size_t size, int* error) {
  *error = 0;
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(fd, to + done, size - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) *error = errno;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

absl::StatusOr<RootDir> RootDir::Open(const std::string& path, const std::string& what) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) {
    const int error = errno;
    const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
    return MayPass(error) ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
  }
  const UniqueFd self(OpenBeneath(fd.get(), ".", O_RDONLY | O_DIRECTORY));
  if (self.get() < 0) {
    if (MayPass(errno)) return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
    return absl::FailedPreconditionError(absl::StrCat(what, " ", path, ": openat2: ", std::strerror(errno),
                                                      "; without it (Linux 5.6) names could lead out"));
  }
  return RootDir(std::move(fd), path, what);
}

absl::Status RootDir::Problem(const std::string& name, int error) const {
  const std::string begin = absl::StrCat(Shown(name), ": ");
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(absl::StrCat(begin, "not in ", what_));
  if (error == EXDEV || error == ELOOP) {
    return absl::InvalidArgumentError(absl::StrCat(begin, "path must be under ", what_, ": a link leads out of it"));
  }
  if (error == ENXIO) return absl::InvalidArgumentError(absl::StrCat(begin, "not a regular file"));
  const std::string text = absl::StrCat(begin, std::strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (MayPass(error) || error == EAGAIN) return absl::UnavailableError(text);
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<int> RootDir::OpenAs(const std::string& name, int flags, mode_t mode) const {
  // A NUL would end the name early.
  if (name.empty() || name.find('\0') != std::string::npos) return Problem(name, EINVAL);
  const int fd = OpenBeneath(fd_.get(), name, flags, mode);
  if (fd < 0) return Problem(name, errno);
  return fd;
}

absl::StatusOr<int> RootDir::OpenFile(const std::string& name) const {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, OpenAs(name, O_RDONLY | O_NONBLOCK, 0));  // O_NONBLOCK: a FIFO must not hold us up
  struct stat st = {};
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
  close(fd);
  return absl::InvalidArgumentError(absl::StrCat(Shown(name), ": not a regular file"));
}

bool RootDir::HasFile(const std::string& name) const {
  const absl::StatusOr<int> fd = OpenFile(name);
  if (fd.ok()) close(*fd);
  return fd.ok();
}

absl::StatusOr<int> RootDir::OpenFolder(const std::string& name) const {
  // O_DIRECTORY: a file is never opened, for closing it would drop the locks that this process has on it (fcntl).
  absl::StatusOr<int> folder = OpenAs(name, O_RDONLY | O_DIRECTORY, 0);
  if (folder.ok() || !absl::IsNotFound(folder.status())) return folder;
  const absl::StatusOr<int> there = OpenAs(name, O_PATH, 0);
  if (!there.ok()) return folder;
  close(*there);
  return absl::InvalidArgumentError(absl::StrCat(Shown(name), ": not a folder"));
}

absl::Status RootDir::MakeFolders(const std::string& name) const {
  for (size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string part = name.substr(0, end);
    const size_t slash = part.rfind('/');
    ASSIGN_OR_RETURN(const int opened, OpenFolder(slash == std::string::npos ? "." : part.substr(0, slash)));
    const UniqueFd parent(opened);
    if (mkdirat(parent.get(), part.substr(slash + 1).c_str(), 0777) != 0 && errno != EEXIST)
      return Problem(part, errno);
    if (fsync(parent.get()) != 0) return Problem(part, errno);
  }
  ASSIGN_OR_RETURN(const int folder, OpenFolder(name));
  close(folder);
  return absl::OkStatus();
}

absl::StatusOr<std::string> RootDir::ReadSmallFile(const std::string& name, int64_t max_bytes) const {
  ASSIGN_OR_RETURN(const int opened, OpenFile(name));
  const UniqueFd fd(opened);
  struct stat st = {};
  fstat(fd.get(), &st);
  if (st.st_size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(name), ": ", st.st_size, " bytes, limit ", max_bytes));
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  int error = 0;
  const size_t done = ReadWhole(fd.get(), text.data(), text.size(), &error);
  if (done == text.size()) return text;
  return absl::DataLossError(absl::StrCat(Shown(name), ": ended after ", done, " of ", text.size(), " bytes"));
}

absl::Status CheckRootsApart(const std::string& a_name, const std::string& a, const std::string& b_name,
                             const std::string& b) {
  std::error_code error;
  const std::filesystem::path first = std::filesystem::canonical(a, error);
  if (error) return absl::OkStatus();
  const std::filesystem::path second = std::filesystem::canonical(b, error);
  if (error) return absl::OkStatus();
  const auto is_in = [](const std::filesystem::path& inner, const std::filesystem::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  };
  if (!is_in(first, second) && !is_in(second, first)) return absl::OkStatus();
  const char* const how = first == second ? " is the same folder as " : is_in(first, second) ? " is in " : " holds ";
  return absl::InvalidArgumentError(absl::StrCat(a_name, "=", a, how, b_name, "=", b, ": they must be apart"));
}

absl::Status CheckWritableFolder(const std::string& name, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(name, "=", path, ": no such directory"));
  }
  if (access(path.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "=", path, ": cannot be written"));
}

bool IsInMemory(const std::string& path) {
  struct statfs system = {};
  std::string at = path;
  while (statfs(at.c_str(), &system) != 0) {
    const size_t end = at.find_last_of('/');
    if (errno != ENOENT || end == std::string::npos || end == 0) return false;
    at.resize(end);
  }
  return system.f_type == TMPFS_MAGIC;
}

}  // namespace switchyard
