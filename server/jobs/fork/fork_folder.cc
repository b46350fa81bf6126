#include "server/jobs/fork/fork_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/io/errno_status.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/io/write_whole.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "server/jobs/job.h"

namespace switchyard::server {
namespace {

constexpr int64_t kMostMarkBytes = 4096;
constexpr size_t kCopyBytes = size_t{1} << 20;
constexpr char kMark[] = "a fork of ";  // begins the file FORKING

absl::StatusOr<UniqueFd> OpenFolderOf(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(name));
  return UniqueFd(fd);
}

// Names in a folder but "." and "..".
absl::StatusOr<std::vector<std::string>> NamesIn(const RootDir& root, const std::string& folder) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(folder));
  DIR* const stream = fdopendir(fd);
  if (stream == nullptr) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, folder);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(stream);
  if (error != 0) return ErrnoStatus(error, folder);
  return names;
}

// The step that LATEST names; -1: it is not there, or damaged.
int64_t LatestStep(const RootDir& root, const std::string& job) {
  constexpr int64_t kMostBytes = 4096;
  const absl::StatusOr<std::string> text =
      root.ReadSmallFile(absl::StrCat(job, "/", jobs::kLatestCheckpoint), kMostBytes);
  if (!text.ok()) return -1;
  // "step-00001000 SHA256 CRC\n": the checksum is that of what is before it.
  const size_t crc_at = text->rfind(' ') + 1;
  if (text->substr(crc_at) != absl::StrFormat("%08x\n", Crc32c(text->substr(0, crc_at)))) return -1;
  return jobs::StepOfFolder(text->substr(0, text->find(' ')));
}

absl::Status CheckGoesOn(const ForkFiles& files) {
  if (!files.give_up || !files.give_up()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("the fork of ", files.parent, " was given up while its files were copied"));
}

absl::Status CopyFile(int from_folder, int to_folder, const std::string& name, const ForkFiles& files) {
  const UniqueFd from(openat(from_folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (from.get() < 0) return ErrnoStatus(errno, name);
  const UniqueFd to(openat(to_folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (to.get() < 0) return ErrnoStatus(errno, name);
  std::string bytes(kCopyBytes, '\0');
  for (;;) {
    RETURN_IF_ERROR(CheckGoesOn(files));
    const ssize_t count = read(from.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, name);
    if (count == 0) break;
    const int error = WriteWhole(to.get(), absl::string_view(bytes.data(), static_cast<size_t>(count)));
    if (error != 0) return ErrnoStatus(error, name);
  }
  return fsync(to.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, name);
}

// Errors of link(2) after which a copy may succeed: no links here, too many of this file, or not of others' files.
bool MayCopyAfter(int error) {
  constexpr int kErrors[] = {EPERM, EMLINK, EOPNOTSUPP, EXDEV, ENOSYS, EACCES};
  return std::find(std::begin(kErrors), std::end(kErrors), error) != std::end(kErrors);
}

// Returns the file's size.
absl::StatusOr<int64_t> LinkOrCopy(int from_folder, int to_folder, const std::string& name, const ForkFiles& files) {
  RETURN_IF_ERROR(CheckGoesOn(files));
  struct stat st = {};
  if (fstatat(from_folder, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return ErrnoStatus(errno, name);
  if (!S_ISREG(st.st_mode)) return absl::InvalidArgumentError(absl::StrCat(Quote(name), ": not a regular file"));
  if (files.may_link && linkat(from_folder, name.c_str(), to_folder, name.c_str(), 0) == 0) return st.st_size;
  if (files.may_link && !MayCopyAfter(errno)) return ErrnoStatus(errno, name);
  RETURN_IF_ERROR(CopyFile(from_folder, to_folder, name, files));
  return st.st_size;
}

// Whether it has the form of JobManager::DrawId.
bool IsJobId(absl::string_view name) {
  return absl::ConsumePrefix(&name, "job-") && name.size() == kJobIdDigits &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

// Whether the folder has the mark of a fork, which names its parent.  Nothing else is removed.
bool HasMark(const RootDir& root, const std::string& folder) {
  const absl::StatusOr<std::string> mark = root.ReadSmallFile(absl::StrCat(folder, "/", kForking), kMostMarkBytes);
  absl::string_view text = mark.ok() ? absl::string_view(*mark) : "";
  return absl::ConsumePrefix(&text, kMark) && IsJobId(text.substr(0, text.find(' ')));
}

absl::Status Sync(int folder, const std::string& name) {
  return fsync(folder) == 0 ? absl::OkStatus() : ErrnoStatus(errno, name);
}

// Whether the folder still has this name.  A checkpoint that is removed is renamed before it loses its first file, and
// so is the folder of a job that is deleted.
bool IsStill(const RootDir& root, const std::string& name, int folder) {
  const absl::StatusOr<UniqueFd> now = OpenFolderOf(root, name);
  struct stat a = {}, b = {};
  return now.ok() && fstat(now->get(), &a) == 0 && fstat(folder, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

absl::Status WriteMark(const RootDir& root, const ForkFiles& files) {
  ASSIGN_OR_RETURN(const int opened,
                   root.OpenAs(absl::StrCat(files.fork, "/", kForking), O_WRONLY | O_CREAT | O_EXCL, 0666));
  const UniqueFd fd(opened);
  const int error = WriteWhole(fd.get(), absl::StrCat(kMark, files.parent, " at step ", files.step, "\n"));
  if (error != 0) return ErrnoStatus(error, kForking);
  return Sync(fd.get(), kForking);
}

absl::StatusOr<ForkFolder> FillForkFolder(const RootDir& root, const ForkFiles& files) {
  RETURN_IF_ERROR(WriteMark(root, files));
  const std::string step = jobs::StepFolder(files.step);
  const std::string from = absl::StrCat(files.parent, "/", step), to = absl::StrCat(files.fork, "/", step);
  RETURN_IF_ERROR(root.MakeFolders(to));
  ASSIGN_OR_RETURN(const UniqueFd from_folder, OpenFolderOf(root, from));
  ASSIGN_OR_RETURN(const UniqueFd to_folder, OpenFolderOf(root, to));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(root, from));
  const bool whole = std::find(names.begin(), names.end(), jobs::kCheckpointManifest) != names.end();
  if (!whole || !IsStill(root, from, from_folder.get()))
    return absl::NotFoundError(absl::StrCat(from, ": was removed"));
  ForkFolder made;
  for (const std::string& name : names) {
    if (name == jobs::kKeptCheckpoint) continue;  // it says that the parent's stays, not the fork's
    ASSIGN_OR_RETURN(const int64_t bytes, LinkOrCopy(from_folder.get(), to_folder.get(), name, files));
    made.checkpoint_bytes += bytes;
  }
  RETURN_IF_ERROR(Sync(to_folder.get(), to));
  ASSIGN_OR_RETURN(const UniqueFd parent, OpenFolderOf(root, files.parent));
  ASSIGN_OR_RETURN(const UniqueFd fork, OpenFolderOf(root, files.fork));
  for (const std::string& name : files.also) {
    const absl::Status had = LinkOrCopy(parent.get(), fork.get(), name, files).status();
    if (had.ok()) made.also.push_back(name);
    if (!had.ok() && !absl::IsNotFound(had)) return had;
  }
  if (!IsStill(root, files.parent, parent.get()))
    return absl::NotFoundError(absl::StrCat(files.parent, ": was removed"));
  RETURN_IF_ERROR(Sync(fork.get(), files.fork));
  return made;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ListCheckpoints(const RootDir& root, const std::string& job) {
  absl::StatusOr<std::vector<std::string>> names = NamesIn(root, job);
  if (absl::IsNotFound(names.status())) return std::vector<int64_t>();
  RETURN_IF_ERROR(names.status());
  std::vector<int64_t> steps;
  for (const std::string& name : *names) {
    const int64_t step = jobs::StepOfFolder(name);
    if (step >= 0 && root.HasFile(absl::StrCat(job, "/", name, "/", jobs::kCheckpointManifest))) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  const int64_t latest = LatestStep(root, job);
  if (latest < 0) return steps;
  std::stable_partition(steps.begin(), steps.end(), [latest](int64_t step) { return step <= latest; });
  return steps;
}

absl::StatusOr<std::vector<std::string>> ListReferences(const RootDir& root, const std::string& job) {
  absl::StatusOr<std::vector<std::string>> names = NamesIn(root, job);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  RETURN_IF_ERROR(names.status());
  std::erase_if(*names, [](const std::string& name) { return !jobs::IsReferenceFile(name); });
  std::sort(names->begin(), names->end());
  return names;
}

absl::StatusOr<ForkFolder> MakeForkFolder(const RootDir& root, const ForkFiles& files) {
  ASSIGN_OR_RETURN(const UniqueFd jobs, OpenFolderOf(root, "."));
  if (mkdirat(jobs.get(), files.fork.c_str(), 0777) != 0) return ErrnoStatus(errno, files.fork);
  absl::StatusOr<ForkFolder> made = FillForkFolder(root, files);
  if (made.ok()) {
    if (const absl::Status synced = Sync(jobs.get(), files.fork); !synced.ok()) made = synced;
  }
  if (!made.ok()) RemoveForkFolder(root, files.fork);
  return made;
}

absl::Status ConfirmForkFolder(const RootDir& root, const std::string& fork) {
  ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolderOf(root, fork));
  if (unlinkat(folder.get(), kForking, 0) != 0 && errno != ENOENT) return ErrnoStatus(errno, kForking);
  return Sync(folder.get(), fork);
}

void RemoveForkFolder(const RootDir& root, const std::string& fork) {
  std::error_code error;
  std::filesystem::remove_all(std::filesystem::path(root.path()) / fork, error);
  if (error) LogWarn(fork, ": the folder of a fork that is no job stays for now: ", error.message());
}

std::vector<std::string> FindUnfinishedForks(const RootDir& root,
                                             absl::FunctionRef<bool(const std::string& id)> is_job) {
  std::vector<std::string> unfinished;
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(root, ".");
  if (!names.ok()) LogWarn("unfinished forks stay for now: ", names.status().message());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (!IsJobId(name) || !HasMark(root, name)) continue;
    if (!is_job(name)) {
      unfinished.push_back(name);
    } else if (const absl::Status confirmed = ConfirmForkFolder(root, name); !confirmed.ok()) {
      LogWarn(name, ": ", confirmed.message());
    }
  }
  return unfinished;
}

}  // namespace switchyard::server
