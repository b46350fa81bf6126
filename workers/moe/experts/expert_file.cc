#include "workers/moe/experts/expert_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/experts/expert_file_builder.h"
#include "workers/moe/experts/expert_file_format.h"

namespace switchyard::moe {
namespace {

constexpr char kNew[] = "is new";
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kFreedWithin = absl::Seconds(5);  // some file systems free in the background

// Like mkdir -p.
void MakeDirs(const std::string& dir) {
  for (size_t end = dir.find('/', 1);; end = dir.find('/', end + 1)) {
    mkdir(dir.substr(0, end).c_str(), 0700);
    if (end == std::string::npos) return;
  }
}

int64_t FreeBytes(const std::string& dir) {
  struct statvfs room = {};
  if (statvfs(dir.c_str(), &room) != 0) return 0;
  return static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_frsize);
}

struct UnusedFile {
  absl::Time opened;
  std::string path;
  int64_t bytes;
  UniqueFd lock;  // nobody opens it meanwhile
};

// Whether it begins as an expert file does, complete or not.
bool LooksLikeOne(int fd) {
  char begin[8] = {};
  constexpr char kZeros[8] = {};
  if (pread(fd, begin, sizeof(begin), 0) < 0) return false;
  return std::memcmp(begin, ExpertFileHeader::kMagic, 6) == 0 || std::memcmp(begin, kZeros, sizeof(begin)) == 0;
}

// Expert files of this user that no process has open, the one that was opened longest ago first.
std::vector<UnusedFile> UnusedFiles(const std::string& dir, const std::string& except) {
  std::vector<UnusedFile> found;
  DIR* const entries = opendir(dir.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = readdir(entries)) {
    const std::string path = absl::StrCat(dir, "/", entry->d_name);
    if (!absl::StartsWith(entry->d_name, kExpertFilePrefix) || !absl::EndsWith(entry->d_name, ".pack") ||
        path == except) {
      continue;
    }
    UniqueFd fd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (fd.get() < 0 || fstat(fd.get(), &status) != 0 || status.st_uid != geteuid() || !S_ISREG(status.st_mode) ||
        status.st_nlink != 1 || !LooksLikeOne(fd.get()) || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      continue;
    }
    found.push_back({absl::TimeFromTimespec(status.st_mtim), path, int64_t{status.st_blocks} * 512, std::move(fd)});
  }
  closedir(entries);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.opened < b.opened; });
  return found;
}

}  // namespace

void RemoveUnusedExpertFiles(const std::string& dir, const std::string& except, int64_t wanted_bytes) {
  const bool all = wanted_bytes == INT64_MAX;
  int64_t free = FreeBytes(dir);
  if (!all && free >= wanted_bytes) return;
  std::vector<UnusedFile> unused = UnusedFiles(dir, except);
  int64_t most = free;
  for (const UnusedFile& file : unused) most += file.bytes;
  if (!all && most < wanted_bytes) return;
  for (const UnusedFile& file : unused) {
    if (!all && free >= wanted_bytes) break;
    if (unlink(file.path.c_str()) != 0) continue;
    free += file.bytes;
    LogInfo("removed ", file.path, ", which nobody uses");
  }
  unused.clear();  // closes them, which frees their blocks
  for (const absl::Time end = MonotonicNow() + kFreedWithin;
       !all && FreeBytes(dir) < wanted_bytes && MonotonicNow() < end;) {
    absl::SleepFor(kPoll);
  }
}

// One call of ExpertFile::Open.
class ExpertFileOpening {
 public:
  ExpertFileOpening(const ExpertFileOptions& options, ExpertFile::Fill fill, ExpertFile::Progress progress)
      : options_(options), format_(options), fill_(fill), progress_(progress) {}

  absl::StatusOr<std::unique_ptr<ExpertFile>> Run();

 private:
  absl::Status OpenFd();
  // Why what is there cannot be used; empty if it can.
  absl::StatusOr<std::string> Problem() const;
  absl::Status AwaitBuilder();
  absl::StatusOr<bool> BecomeUsable();

  const ExpertFileOptions& options_;
  const ExpertFileFormat format_;
  const ExpertFile::Fill fill_;
  const ExpertFile::Progress progress_;
  UniqueFd fd_;
  int64_t last_done_ = -1;  // of the builder that it waits for
  absl::Time stands_still_at_ = absl::InfiniteFuture();
};

absl::Status ExpertFileOpening::OpenFd() {
  const std::string& path = format_.path;
  fd_ = UniqueFd();
  MakeDirs(options_.dir);
  fd_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd_.get() < 0) return ExpertFileError(path, "cannot open");
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return ExpertFileError(path, "cannot stat");
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("expert file %s: wants a file of user %d with mode 0600, is of user %d with mode %o", path,
                        geteuid(), status.st_uid, status.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ExpertFileOpening::Problem() const {
  const ExpertFileLayout& layout = format_.layout;
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return ExpertFileError(format_.path, "cannot stat");
  if (status.st_size == 0) return kNew;
  if (status.st_size != layout.bytes) return absl::StrCat("has ", status.st_size, " bytes of ", layout.bytes);
  ASSIGN_OR_RETURN(const ExpertFileMapping mapping, ExpertFileMapping::Map(format_, fd_.get(), /*writable=*/false));
  if (std::string problem = format_.Problem(mapping.get()); !problem.empty()) return problem;
  for (int64_t i = 0; i < format_.experts && !options_.on_disk; ++i) {
    if (!format_.HasSum(i, format_.Expert(i, mapping.get()), mapping.get())) {
      return absl::StrCat("has damaged bytes in expert ", i % layout.num_experts, " of MoE layer ",
                          i / layout.num_experts);
    }
    const int64_t done = layout.data + i * layout.stride;
    if (!progress_(done, layout.bytes)) return ExpertFileStopped(format_.path, done);
  }
  return "";
}

// Another process has the lock.
absl::Status ExpertFileOpening::AwaitBuilder() {
  int64_t reported[2] = {};
  if (pread(fd_.get(), reported, sizeof(reported), offsetof(ExpertFileHeader, done)) < 0)
    return ExpertFileError(format_.path, "cannot read");
  const auto [done, builder] = reported;
  const absl::Time now = MonotonicNow();
  if (done != last_done_) {
    last_done_ = done;
    stands_still_at_ = now + options_.patience;
  }
  if (now >= stands_still_at_) {
    return absl::DeadlineExceededError(absl::StrCat(
        "expert file ", format_.path, ": waited ", absl::FormatDuration(options_.patience), " for process ", builder,
        ", which holds it and stands at ", done, " of ", format_.layout.bytes, " bytes"));
  }
  if (!progress_(done, format_.layout.bytes * PartsOfBuilding(options_))) return ExpertFileStopped(format_.path, done);
  absl::SleepFor(kPoll);
  return absl::OkStatus();
}

// Returns, once this process shares a usable file, whether it built it.
absl::StatusOr<bool> ExpertFileOpening::BecomeUsable() {
  const std::string& path = format_.path;
  for (bool built = false;;) {
    if (flock(fd_.get(), LOCK_SH | LOCK_NB) != 0) {
      RETURN_IF_ERROR(AwaitBuilder());
      continue;
    }
    struct stat status = {};
    if (fstat(fd_.get(), &status) != 0) return ExpertFileError(path, "cannot stat");
    if (status.st_nlink == 0) {  // removed since it was opened
      RETURN_IF_ERROR(OpenFd());
      continue;
    }
    ASSIGN_OR_RETURN(std::string problem, Problem());
    if (problem.empty()) {
      futimens(fd_.get(), nullptr);  // when it was used last: what RemoveUnusedExpertFiles goes by
      return built;
    }
    // Writing takes an exclusive lock, since others may use the file or build it.  Acquiring that releases the shared
    // one, so another process may have been faster.
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      RETURN_IF_ERROR(AwaitBuilder());
      continue;
    }
    ASSIGN_OR_RETURN(problem, Problem());
    if (problem.empty()) continue;
    if (problem != kNew) LogWarn("expert file ", path, " ", problem, ": building it again");
    ExpertFileBuilder builder(options_, format_, fd_.get(), fill_, progress_);
    if (const absl::Status failed = builder.Build(); !failed.ok()) {
      unlink(path.c_str());
      return failed;
    }
    built = true;
  }
}

absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFileOpening::Run() {
  if (format_.identity.size() > sizeof(ExpertFileHeader::identity)) {
    return absl::InvalidArgumentError(absl::StrCat("expert file: its identity has ", format_.identity.size(),
                                                   " bytes of ", sizeof(ExpertFileHeader::identity)));
  }
  RETURN_IF_ERROR(OpenFd());
  ASSIGN_OR_RETURN(const bool built, BecomeUsable());
  // Writable for a driver that cannot pin memory as read-only.
  ASSIGN_OR_RETURN(ExpertFileMapping mapping,
                   ExpertFileMapping::Map(format_, fd_.get(), options_.device != DeviceKind::kCpu));
  return std::unique_ptr<ExpertFile>(
      new ExpertFile(format_, std::move(fd_), std::make_unique<ExpertFileMapping>(std::move(mapping)), built));
}

absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFile::Open(const ExpertFileOptions& options, Fill fill,
                                                             Progress progress) {
  SY_CHECK(options.num_layers >= 1 && options.num_experts >= 1 && options.expert.bytes() > 0 &&
           options.piece_bytes > 0 && options.piece_bytes % 4096 == 0);
  return ExpertFileOpening(options, fill, progress).Run();
}

ExpertFile::ExpertFile(const ExpertFileFormat& format, UniqueFd fd, std::unique_ptr<ExpertFileMapping> mapping,
                       bool built)
    : path_(format.path),
      fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      memory_(mapping_->get()),
      layout_(format.layout),
      mapped_(format.mapped_bytes == format.layout.bytes),
      built_(built) {}
ExpertFile::~ExpertFile() = default;

void ExpertFile::Discard() const {
  struct stat mine = {}, named = {};
  if (fstat(fd_.get(), &mine) != 0 || stat(path_.c_str(), &named) != 0) return;
  if (mine.st_dev != named.st_dev || mine.st_ino != named.st_ino) return;
  if (unlink(path_.c_str()) == 0) LogWarn("expert file ", path_, " is damaged: removed, and built again");
}

uint64_t ExpertFile::SumAt(int64_t i) const {
  uint64_t sum;
  std::memcpy(&sum, memory_ + kExpertTableAt + i * 8, 8);
  return sum;
}

uint64_t ExpertFile::checksum(int layer, int expert) const { return SumAt(layout_.IndexOf(layer, expert)); }

uint64_t ExpertFile::checksum_of_piece(int layer, int expert, int64_t offset) const {
  const int64_t piece = offset / layout_.piece_bytes;
  SY_CHECK(offset % layout_.piece_bytes == 0 && piece < layout_.pieces);
  const int64_t experts = int64_t{layout_.num_layers} * layout_.num_experts;
  return SumAt(experts + layout_.IndexOf(layer, expert) * layout_.pieces + piece);
}

}  // namespace switchyard::moe
