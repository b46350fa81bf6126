#include "workers/train/parameters/state_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/write_whole.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

// Left free for other users of the disk.
constexpr int64_t kSlackBytes = int64_t{1} << 20;

absl::Status Problem(const std::string& directory, const std::string& call, int error) {
  const std::string text = absl::StrCat("offload: ", directory, ": ", call, ": ", std::strerror(error));
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Lost(full ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text));
}

class UnnamedFile final : public StateFile {
 public:
  UnnamedFile(int fd, std::string directory) : fd_(fd), directory_(std::move(directory)) {}
  ~UnnamedFile() override { close(fd_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  absl::Status Read(int64_t at, absl::Span<char> to) const override {
    while (!to.empty()) {
      const ssize_t count = pread(fd_, to.data(), to.size(), at);
      if (count < 0 && errno == EINTR) continue;
      // The file has all bytes, so an early end is an error.
      if (count <= 0) return Problem(directory_, absl::StrCat("read at byte ", at), count < 0 ? errno : EIO);
      to.remove_prefix(static_cast<size_t>(count));
      at += count;
    }
    return absl::OkStatus();
  }

  absl::Status Write(int64_t at, absl::string_view from) override {
    const int error = WriteWholeAt(fd_, at, from);
    return error == 0 ? absl::OkStatus() : Problem(directory_, absl::StrCat("write at byte ", at), error);
  }

 private:
  const int fd_;
  const std::string directory_;
};

// Not all file systems have O_TMPFILE.
int OpenUnnamed(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/.switchyard-offload-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> OpenStateFile(const std::string& directory, int64_t bytes) {
  const int fd = OpenUnnamed(directory);
  if (fd < 0) return Problem(directory, "a file cannot be made", errno);
  auto file = std::make_unique<UnnamedFile>(fd, directory);
  int error = 0;
  do {
    error = bytes > 0 ? posix_fallocate(fd, 0, bytes) : 0;
  } while (error == EINTR);
  if (error != 0) return Problem(directory, absl::StrCat("room for ", bytes, " bytes"), error);
  return file;
}

absl::Status CheckStateRoom(const std::string& directory, int64_t bytes, int shares) {
  struct statvfs st = {};
  if (statvfs(directory.c_str(), &st) != 0) return Problem(directory, "free space", errno);
  const int64_t free = static_cast<int64_t>(st.f_bavail) * static_cast<int64_t>(st.f_frsize);
  if (bytes <= (free - kSlackBytes) / shares) return absl::OkStatus();
  return Lost(absl::ResourceExhaustedError(absl::StrCat(
      "offload: ", directory, ": needs ", bytes, " bytes",
      shares > 1 ? absl::StrCat(" for each of ", shares, " ranks of this machine") : "", ", ", free, " are free")));
}

}  // namespace switchyard::train
