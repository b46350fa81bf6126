#include "scheduler/base/io/model_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/io/no_model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

// Opens `name` under root without leaving it.  Kernels before 5.6 and some sandboxes have no openat2: there links are
// not followed at all.
int OpenBeneath(int root_fd, const std::string& name) {
  open_how how = {};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // O_NONBLOCK: a FIFO must not hold us up
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = syscall(SYS_openat2, root_fd, name.c_str(), &how, sizeof(how));
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(fd);
  return openat(root_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
}

// The Hugging Face cache: <root>/snapshots/<revision>.
bool IsCacheSnapshot(const std::string& real_path) {
  const std::vector<std::string> parts = absl::StrSplit(real_path, '/');
  return parts.size() >= 3 && parts[parts.size() - 2] == "snapshots";
}

}  // namespace

absl::Status CheckPlainName(absl::string_view name) {
  const bool plain = !name.empty() && name.size() <= 255 && name.find('/') == absl::string_view::npos &&
                     name.find('\0') == absl::string_view::npos && name != "." && name != "..";
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)), "\" is not a plain file name of the model directory"));
}

absl::StatusOr<ModelDir> ModelDir::Open(const std::string& path) {
  struct stat st = {};
  if (stat(path.c_str(), &st) != 0) {
    return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", WhyNoModelDir(path)));
  }
  if (!S_ISDIR(st.st_mode)) return absl::InvalidArgumentError(absl::StrCat("model ", path, ": ", WhyNoModelDir(path)));
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr)
    return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", std::strerror(errno)));
  std::string root = resolved;
  std::free(resolved);
  std::string prefix;
  if (IsCacheSnapshot(root)) {
    const size_t revision = root.rfind('/');
    const size_t snapshots = root.rfind('/', revision - 1);
    prefix = root.substr(snapshots + 1) + "/";
    root.resize(snapshots);
  }
  const int fd = open(root.empty() ? "/" : root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::PermissionDeniedError(absl::StrCat("model directory ", path, ": ", std::strerror(errno)));
  return ModelDir(fd, std::move(prefix), path);
}

absl::StatusOr<ModelDir> ModelDir::Beneath(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(name));
  return ModelDir(fd, "", absl::StrCat(root.path(), "/", name));
}

ModelDir::ModelDir(ModelDir&& other) noexcept
    : root_fd_(std::exchange(other.root_fd_, -1)), prefix_(std::move(other.prefix_)), path_(std::move(other.path_)) {}

ModelDir::~ModelDir() {
  if (root_fd_ >= 0) close(root_fd_);
}

absl::StatusOr<ModelDir> ModelDir::Folder(const std::string& name) const {
  RETURN_IF_ERROR(CheckPlainName(name));
  struct stat st = {};
  if (fstatat(root_fd_, (prefix_ + name).c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::NotFoundError(absl::StrCat(name, ": no such folder in the model directory"));
  }
  const int fd = fcntl(root_fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat(name, ": ", std::strerror(errno)));
  return ModelDir(fd, absl::StrCat(prefix_, name, "/"), absl::StrCat(path_, "/", name));
}

absl::StatusOr<int> ModelDir::OpenFile(const std::string& name) const {
  RETURN_IF_ERROR(CheckPlainName(name));
  const int fd = OpenBeneath(root_fd_, prefix_ + name);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(name, ": no such file in the model directory"));
    if (errno == EXDEV || errno == ELOOP) {
      return absl::PermissionDeniedError(absl::StrCat(name, ": its link leads out of the model directory"));
    }
    const std::string text = absl::StrCat(name, ": ", std::strerror(errno));
    // What passes says nothing of the file.
    const bool passes = errno == EIO || errno == ESTALE || errno == ENOMEM || errno == EAGAIN || errno == EINTR;
    if (passes) return absl::UnavailableError(text);
    if (errno == EMFILE || errno == ENFILE) return absl::ResourceExhaustedError(text);
    return absl::PermissionDeniedError(text);
  }
  struct stat st = {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file"));
  }
  return fd;
}

bool ModelDir::Exists(const std::string& name) const {
  struct stat st = {};
  return fstatat(root_fd_, (prefix_ + name).c_str(), &st, 0) == 0;
}

absl::StatusOr<std::string> ModelDir::ReadSmallFile(const std::string& name, int64_t max_bytes) const {
  int fd = -1;
  ASSIGN_OR_RETURN(fd, OpenFile(name));
  struct stat st = {};
  fstat(fd, &st);
  std::string text;
  absl::Status status;
  if (st.st_size > max_bytes) {
    status = absl::InvalidArgumentError(absl::StrCat(name, ": ", st.st_size, " bytes, limit ", max_bytes));
  } else {
    text.resize(static_cast<size_t>(st.st_size));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        status = absl::UnavailableError(absl::StrCat(name, ": read at ", done, ": ", std::strerror(errno)));
        break;
      }
      if (n == 0) {
        status = absl::DataLossError(absl::StrCat(name, ": ended after ", done, " of ", text.size(), " bytes"));
        break;
      }
      done += static_cast<size_t>(n);
    }
  }
  close(fd);
  if (!status.ok()) return status;
  return text;
}

std::vector<std::string> ModelDir::List() const {
  std::vector<std::string> names;
  DIR* dir = opendir(path_.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace switchyard
