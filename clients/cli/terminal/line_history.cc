#include "clients/cli/terminal/line_history.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::cli {
namespace {

absl::Status FileError(absl::string_view path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
}

// In the file a line has no line breaks: these are \n, and a backslash is two.
std::string Escaped(const std::string& line) { return absl::StrReplaceAll(line, {{"\\", "\\\\"}, {"\n", "\\n"}}); }
std::string Unescaped(absl::string_view line) { return absl::StrReplaceAll(line, {{"\\\\", "\\"}, {"\\n", "\n"}}); }

// Makes the folders above the file that are missing.
absl::Status MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return FileError(folder, std::strerror(errno));
  }
  return absl::OkStatus();
}

std::string ReadAt(int fd, off_t at, size_t bytes) {
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, text.data() + done, bytes - done, at + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

// At the end of the file, at once.
bool Append(int fd, const std::string& text) {
  ssize_t written = 0;
  do {
    written = write(fd, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(text.size());
}

}  // namespace

std::string LineHistory::DefaultPath() {
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return absl::StrCat(state, "/switchyard/history");
  const char* const home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? absl::StrCat(home, "/.local/state/switchyard/history") : "";
}

absl::StatusOr<std::unique_ptr<LineHistory>> LineHistory::Open(const std::string& path) {
  RETURN_IF_ERROR(MakeFolders(path));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600);
  if (fd < 0) return FileError(path, errno == ELOOP ? "is a link" : std::strerror(errno));
  std::unique_ptr<LineHistory> opened(new LineHistory(path, fd));
  RETURN_IF_ERROR(opened->Load());
  return opened;
}

LineHistory::~LineHistory() { close(fd_); }

absl::Status LineHistory::Load() {
  struct stat st = {};
  if (fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) return FileError(path_, "is no regular file");
  if (st.st_uid != geteuid()) return FileError(path_, "belongs to another user");
  if ((st.st_mode & 077) != 0 && fchmod(fd_, 0600) != 0) return FileError(path_, std::strerror(errno));
  const auto size = static_cast<size_t>(st.st_size);
  const size_t begin = size - std::min(size, kMostBytes);
  const std::string text = ReadAt(fd_, static_cast<off_t>(begin), size - begin);
  std::vector<absl::string_view> entries = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (begin > 0 && !entries.empty()) entries.erase(entries.begin());  // its beginning is missing
  const size_t all = entries.size();
  entries.erase(entries.begin(), entries.end() - static_cast<ptrdiff_t>(std::min(all, kMostLines)));
  std::string kept;
  for (const absl::string_view entry : entries) {
    if (entry.size() > 2 * kMostLineBytes || FindInvalidUtf8(entry) != absl::string_view::npos) continue;
    lines_.push_back(Unescaped(entry));
    absl::StrAppend(&kept, entry, "\n");
  }
  if (!lines_.empty()) last_ = lines_.back();
  // Rewritten only now and then, and by one program at a time.
  if ((begin > 0 || all > 2 * kMostLines) && flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const bool rewritten = ftruncate(fd_, 0) == 0 && Append(fd_, kept);
    flock(fd_, LOCK_UN);
    if (!rewritten) return FileError(path_, std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::Status LineHistory::Add(const std::string& line) {
  if (line.empty() || line == last_ || line.size() > kMostLineBytes) return absl::OkStatus();
  last_ = line;
  return Append(fd_, absl::StrCat(Escaped(line), "\n")) ? absl::OkStatus() : FileError(path_, std::strerror(errno));
}

}  // namespace switchyard::cli
