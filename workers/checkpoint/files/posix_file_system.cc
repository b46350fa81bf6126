#include "workers/checkpoint/files/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/errno_status.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/io/write_whole.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::checkpoint {
namespace {

// The status of a call on `path` that failed with errno.
absl::Status Failed(absl::string_view what, absl::string_view path) {
  const int error = errno;
  return ErrnoStatus(error, absl::StrCat(path.empty() ? "." : path, ": ", what));
}

class PosixFile : public File {
 public:
  PosixFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::StatusOr<int64_t> Size() const override {
    struct stat st = {};
    if (fstat(fd_.get(), &st) != 0) return Failed("size", path_);
    return st.st_size;
  }

  absl::Status Read(int64_t begin, absl::Span<char> to) const override {
    for (size_t done = 0; done < to.size();) {
      const int64_t at = begin + static_cast<int64_t>(done);
      const ssize_t count = pread(fd_.get(), to.data() + done, to.size() - done, at);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed(absl::StrCat("read at byte ", at), path_);
      if (count == 0) {
        return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", at, ", expected ",
                                                begin + static_cast<int64_t>(to.size()), " bytes at least"));
      }
      done += static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }

  absl::Status Append(absl::string_view bytes) override {
    errno = WriteWhole(fd_.get(), bytes);
    return errno == 0 ? absl::OkStatus() : Failed("write", path_);
  }

  absl::Status Sync() override { return fsync(fd_.get()) == 0 ? absl::OkStatus() : Failed("fsync", path_); }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

// A lock's file is never removed, so its name always means this file.
absl::Status Lock(int fd, const std::string& path) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return ftruncate(fd, 0) == 0 ? absl::OkStatus() : Failed("empty", path);
  if (errno != EWOULDBLOCK) return Failed("lock", path);
  char holder[256];
  const ssize_t count = pread(fd, holder, sizeof(holder), 0);
  const absl::string_view text(holder, count > 0 ? static_cast<size_t>(count) : 0);
  return absl::FailedPreconditionError(absl::StrCat(path, ": locked by ", text.empty() ? "somebody" : Excerpt(text)));
}

class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(UniqueFd root) : root_(std::move(root)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    ASSIGN_OR_RETURN(Place place, Find(path));
    // O_NONBLOCK, as opening a FIFO must not block.
    int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    if (mode == OpenMode::kRead) flags |= O_RDONLY;
    if (mode == OpenMode::kCreate) flags |= O_WRONLY | O_CREAT | O_EXCL | O_APPEND;
    if (mode == OpenMode::kLock) flags |= O_RDWR | O_CREAT | O_APPEND;
    UniqueFd fd(openat(place.folder(), place.name.c_str(), flags, 0666));
    if (fd.get() < 0) return Failed("open", path);
    struct stat st = {};
    if (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
    }
    if (mode == OpenMode::kLock) RETURN_IF_ERROR(Lock(fd.get(), path));
    return std::make_unique<PosixFile>(std::move(fd), path);
  }

  absl::Status MakeFolder(const std::string& path) override {
    ASSIGN_OR_RETURN(Place place, Find(path));
    return mkdirat(place.folder(), place.name.c_str(), 0777) == 0 ? absl::OkStatus() : Failed("make", path);
  }

  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& folder) override {
    ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(folder));
    const int own = fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);  // closedir closes it
    DIR* const dir = own < 0 ? nullptr : fdopendir(own);
    if (dir == nullptr) return Failed("list", folder);
    std::vector<FolderEntry> entries;
    errno = 0;
    while (const dirent* entry = readdir(dir)) {
      const absl::string_view name = entry->d_name;
      struct stat st = {};
      if (name == "." || name == ".." || fstatat(fd.get(), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
      entries.push_back({std::string(name), S_ISDIR(st.st_mode)});
      errno = 0;
    }
    const absl::Status status = errno == 0 || errno == ENOENT ? absl::OkStatus() : Failed("list", folder);
    closedir(dir);
    RETURN_IF_ERROR(status);
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    ASSIGN_OR_RETURN(const Place source, Find(from));
    ASSIGN_OR_RETURN(const Place target, Find(to));
    if (renameat(source.folder(), source.name.c_str(), target.folder(), target.name.c_str()) == 0) {
      return absl::OkStatus();
    }
    return Failed(absl::StrCat("rename to ", to), from);
  }

  absl::Status Remove(const std::string& path) override {
    ASSIGN_OR_RETURN(Place place, Find(path));
    if (unlinkat(place.folder(), place.name.c_str(), 0) == 0) return absl::OkStatus();
    // A folder: EISDIR here, EPERM by POSIX.
    if ((errno == EISDIR || errno == EPERM) && unlinkat(place.folder(), place.name.c_str(), AT_REMOVEDIR) == 0) {
      return absl::OkStatus();
    }
    return Failed("remove", path);
  }

  absl::Status SyncFolder(const std::string& folder) override {
    ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(folder));
    return fsync(fd.get()) == 0 ? absl::OkStatus() : Failed("fsync", folder);
  }

  absl::StatusOr<int64_t> FreeBytes() override {
    struct statvfs st = {};
    if (fstatvfs(root_.get(), &st) != 0) return Failed("free space", "");
    return static_cast<int64_t>(st.f_bavail) * static_cast<int64_t>(st.f_frsize);
  }

 private:
  // A name in an open folder.
  struct Place {
    UniqueFd parent;
    std::string name;
    int folder() const { return parent.get(); }
  };

  absl::StatusOr<Place> Find(const std::string& path) {
    ASSIGN_OR_RETURN(CheckpointPath parsed, ParseCheckpointPath(path));
    if (parsed.name.empty()) return absl::InvalidArgumentError("the root itself is no file");
    ASSIGN_OR_RETURN(UniqueFd parent, OpenFolder(parsed.folder));
    return Place{std::move(parent), parsed.name};
  }

  absl::StatusOr<UniqueFd> OpenFolder(const std::string& folder) {
    ASSIGN_OR_RETURN(CheckpointPath parsed, ParseCheckpointPath(folder));
    if (!parsed.folder.empty()) return absl::InvalidArgumentError(absl::StrCat(folder, ": a folder in a folder"));
    const char* const name = parsed.name.empty() ? "." : parsed.name.c_str();
    UniqueFd fd(openat(root_.get(), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (fd.get() < 0) return Failed("open", folder);
    return fd;
  }

  const UniqueFd root_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> OpenPosixFileSystem(const std::string& directory) {
  UniqueFd root(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (root.get() < 0) return Failed("open", directory);
  return std::make_unique<PosixFileSystem>(std::move(root));
}

std::unique_ptr<File> FileOfDescriptor(int fd, const std::string& path) {
  return std::make_unique<PosixFile>(UniqueFd(fd), path);
}

}  // namespace switchyard::checkpoint
