#include "workers/moe/experts/expert_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/experts/expert_checksum.h"

namespace switchyard::moe {
namespace {

constexpr char kMagic[9] = "SYEXPT02";
constexpr char kPrefix[] = "switchyard-experts-";
constexpr uint64_t kComplete = 0x6574656c706d6f43u;  // "Complete"
constexpr int64_t kTableAt = 4096;                   // the checksums of experts and their pieces
constexpr int64_t kPage = 4096, kHugePage = 2 << 20;
constexpr int64_t kAllocatedAtOnce = 1 << 30;
constexpr char kNew[] = "is new";
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kLogEvery = absl::Seconds(2);

struct Header {
  char magic[8];
  uint64_t state;
  std::atomic<int64_t> done;  // read by those who wait
  std::atomic<int64_t> builder;
  uint64_t checksum;
  // The checksum covers these fields and the table.
  int64_t file_bytes, data, stride, experts, identity_bytes;
  char identity[kTableAt - 80];
};
static_assert(sizeof(Header) == kTableAt && offsetof(Header, file_bytes) == 40 && offsetof(Header, identity) == 80);

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Like mkdir -p.
void MakeDirs(const std::string& dir) {
  for (size_t end = dir.find('/', 1);; end = dir.find('/', end + 1)) {
    mkdir(dir.substr(0, end).c_str(), 0700);
    if (end == std::string::npos) return;
  }
}

absl::Status Failed(const std::string& path, const char* what) {
  const std::string text = absl::StrCat("expert file ", path, ": ", what, ": ", std::strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

}  // namespace

void RemoveUnusedExpertFiles(const std::string& dir, const std::string& except) {
  DIR* const entries = opendir(dir.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const std::string path = absl::StrCat(dir, "/", entry->d_name);
    if (!absl::StartsWith(entry->d_name, kPrefix) || path == except) continue;
    const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat status = {};
    if (fstat(fd, &status) == 0 && status.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (unlink(path.c_str()) == 0) LogInfo("removed ", path, ", which nobody uses");
    }
    close(fd);
  }
  closedir(entries);
}

// One call of ExpertFile::Open.
class ExpertFileOpening : public ExpertFile::Places {
 public:
  ExpertFileOpening(const ExpertFileOptions& options, ExpertFile::Fill fill, ExpertFile::Progress progress)
      : options_(options), fill_(fill), progress_(progress) {
    const int64_t unit = options.expert.bytes >= 16 * kHugePage && !options.on_disk ? kHugePage : kPage;
    experts_ = int64_t{options.num_layers} * options.num_experts;
    layout_ = {.num_layers = options.num_layers,
               .num_experts = options.num_experts,
               .stride = RoundUp(options.expert.bytes, unit),
               .piece_bytes = options.piece_bytes,
               .pieces = (options.expert.bytes + options.piece_bytes - 1) / options.piece_bytes};
    layout_.data = RoundUp(kTableAt + table_bytes(), unit);
    layout_.bytes = layout_.data + experts_ * layout_.stride;
    identity_ =
        absl::StrCat("weights ", options.weights, " layers ", options.num_layers, " experts ", options.num_experts,
                     " gate_up ", options.expert.gate_up.ToString(), " down ", options.expert.down.ToString(),
                     " packed for ", options.device == DeviceKind::kCpu ? "cpu" : "cuda", " pieces ",
                     options.piece_bytes, options.on_disk ? " on disk" : "");
    path_ = absl::StrFormat("%s/%s%d-%016x.pack", options.dir, kPrefix, getuid(),
                            ChecksumOf(identity_.data(), static_cast<int64_t>(identity_.size())));
  }
  ~ExpertFileOpening() override { Unmap(); }

  absl::StatusOr<std::unique_ptr<ExpertFile>> Run();

  char* At(int layer, int expert) override {
    if (!options_.on_disk) return memory_ + layout_.OffsetOf(layer, expert);
    const int64_t at = layout_.IndexOf(layer, expert) - staged_first_;
    return 0 <= at && at < staged_count_ ? staging_ + at * layout_.stride : nullptr;
  }
  bool Report(int64_t bytes_done) override {
    const int64_t done = std::min(layout_.bytes, staged_first_ * layout_.stride + bytes_done) + part_ * layout_.bytes;
    header()->done.store(done);
    return progress_(done, all_parts());
  }

 private:
  Header* header() const { return reinterpret_cast<Header*>(memory_); }
  uint64_t* table() const { return reinterpret_cast<uint64_t*>(memory_ + kTableAt); }
  const char* Expert(int64_t i) const { return memory_ + layout_.data + i * layout_.stride; }
  // The parts of building: taking the room, filling, and, if it is mapped, the checksums.
  int64_t all_parts() const { return layout_.bytes * (options_.on_disk ? 2 : 3); }
  int64_t table_bytes() const { return experts_ * (1 + layout_.pieces) * 8; }
  int64_t mapped_bytes() const { return options_.on_disk ? layout_.data : layout_.bytes; }
  uint64_t HeaderChecksum() const { return ChecksumOf(memory_ + 40, kTableAt - 40 + table_bytes()); }
  // Notes the checksums of the expert of this index.
  void Sum(int64_t i, const char* bytes);

  absl::Status OpenFd();
  absl::Status CheckRoom() const;
  absl::Status Map(bool writable);
  void Unmap();
  // Why what is there cannot be used; empty if it can.
  absl::StatusOr<std::string> Problem();
  absl::Status Build();
  absl::Status FillMapped();
  absl::Status FillOnDisk();
  absl::Status AwaitBuilder();
  absl::StatusOr<bool> BecomeUsable();
  absl::Status ReportProgress(int64_t done) const {
    return progress_(done, layout_.bytes) ? absl::OkStatus() : Stopped(done);
  }
  absl::Status Stopped(int64_t done) const {
    return absl::CancelledError(absl::StrCat("expert file ", path_, ": stopped after ", done, " bytes"));
  }

  const ExpertFileOptions& options_;
  const ExpertFile::Fill fill_;
  const ExpertFile::Progress progress_;
  int64_t experts_;
  ExpertFileLayout layout_;
  std::string identity_, path_;
  UniqueFd fd_;
  char* memory_ = nullptr;
  // The experts that FillOnDisk has in memory.
  char* staging_ = nullptr;
  int64_t staged_first_ = 0, staged_count_ = 0;
  int64_t part_ = 0;        // of building
  int64_t last_done_ = -1;  // of the builder that it waits for
  absl::Time stands_still_at_ = absl::InfiniteFuture();
};

absl::Status ExpertFileOpening::OpenFd() {
  fd_ = UniqueFd();
  MakeDirs(options_.dir);
  fd_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd_.get() < 0) return Failed(path_, "cannot open");
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return Failed(path_, "cannot stat");
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("expert file %s: wants a file of user %d with mode 0600, is of user %d with mode %o", path_,
                        geteuid(), status.st_uid, status.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::Status ExpertFileOpening::CheckRoom() const {
  struct statvfs room = {};
  if (fstatvfs(fd_.get(), &room) != 0) return Failed(path_, "cannot stat its file system");
  int64_t free = static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_frsize);
  if (IsInMemory(options_.dir)) free = std::min(free, options_.available_bytes);
  if (layout_.bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("expert file: ", experts_, " experts take ", Mib(layout_.bytes),
                                                   ", ", options_.dir, " has ", Mib(free),
                                                   "; name another directory with --expert_file_dir"));
}

absl::Status ExpertFileOpening::Map(bool writable) {
  const auto bytes = static_cast<size_t>(mapped_bytes());
  void* const memory = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) return Failed(path_, "cannot map");
  memory_ = static_cast<char*>(memory);
  madvise(memory_, bytes, MADV_HUGEPAGE);
  return absl::OkStatus();
}

void ExpertFileOpening::Unmap() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(mapped_bytes()));
  memory_ = nullptr;
}

absl::StatusOr<std::string> ExpertFileOpening::Problem() {
  struct stat status = {};
  if (fstat(fd_.get(), &status) != 0) return Failed(path_, "cannot stat");
  if (status.st_size == 0) return kNew;
  if (status.st_size != layout_.bytes) return absl::StrCat("has ", status.st_size, " bytes of ", layout_.bytes);
  RETURN_IF_ERROR(Map(false));
  const absl::Cleanup unmap = [this] { Unmap(); };
  const Header& header = *this->header();
  if (std::memcmp(header.magic, kMagic, 8) != 0) return "is another kind of file";
  if (header.state != kComplete) return "is incomplete";
  if (header.checksum != HeaderChecksum()) return "has a damaged header";
  if (header.file_bytes != layout_.bytes || header.data != layout_.data || header.stride != layout_.stride ||
      header.experts != experts_ ||
      identity_ != std::string(header.identity, static_cast<size_t>(std::clamp<int64_t>(header.identity_bytes, 0,
                                                                                        sizeof(header.identity))))) {
    return "is of another model";
  }
  for (int64_t i = 0; i < experts_ && !options_.on_disk; ++i) {
    if (table()[i] != ChecksumOf(Expert(i), options_.expert.bytes)) {
      return absl::StrCat("has damaged bytes in expert ", i % options_.num_experts, " of MoE layer ",
                          i / options_.num_experts);
    }
    RETURN_IF_ERROR(ReportProgress(layout_.data + i * layout_.stride));
  }
  return "";
}

absl::Status ExpertFileOpening::Build() {
  if (IsInMemory(options_.dir)) RemoveUnusedExpertFiles(options_.dir, path_);
  if (ftruncate(fd_.get(), 0) != 0) return Failed(path_, "cannot empty");
  RETURN_IF_ERROR(CheckRoom());
  // Allocates all of it: a full file system would raise a signal later, in a write to the mapping.
  for (int64_t at = 0; at < layout_.bytes; at += kAllocatedAtOnce) {
    const int64_t bytes = std::min(kAllocatedAtOnce, layout_.bytes - at);
    if (const int error = posix_fallocate(fd_.get(), at, bytes); error != 0) {
      errno = error;
      return Failed(path_, absl::StrCat("no room for ", Mib(layout_.bytes)).c_str());
    }
    // Not mapped yet, but others wait already.
    const int64_t done[] = {at + bytes, getpid()};
    if (pwrite(fd_.get(), done, sizeof(done), offsetof(Header, done)) != sizeof(done))
      return Failed(path_, "cannot write");
    if (!progress_(at + bytes, all_parts())) return Stopped(at + bytes);
  }
  RETURN_IF_ERROR(Map(true));
  const absl::Cleanup unmap = [this] { Unmap(); };
  Header& header = *this->header();
  header.builder.store(getpid());
  part_ = 1;
  RETURN_IF_ERROR(options_.on_disk ? FillOnDisk() : FillMapped());
  std::memcpy(header.magic, kMagic, 8);
  header.file_bytes = layout_.bytes;
  header.data = layout_.data;
  header.stride = layout_.stride;
  header.experts = experts_;
  header.identity_bytes = static_cast<int64_t>(identity_.size());
  std::memcpy(header.identity, identity_.data(), identity_.size());
  header.checksum = HeaderChecksum();
  if (msync(memory_, static_cast<size_t>(mapped_bytes()), MS_SYNC) != 0 || fdatasync(fd_.get()) != 0)
    return Failed(path_, "cannot write");
  // Last, so that a process that sees the mark sees the rest.
  header.state = kComplete;
  if (msync(memory_, kTableAt, MS_SYNC) != 0) return Failed(path_, "cannot write");
  return absl::OkStatus();
}

void ExpertFileOpening::Sum(int64_t i, const char* bytes) {
  table()[i] = ChecksumOf(bytes, options_.expert.bytes);
  uint64_t* const of_pieces = table() + experts_ + i * layout_.pieces;
  for (int64_t piece = 0; piece < layout_.pieces; ++piece) {
    const int64_t at = piece * layout_.piece_bytes;
    of_pieces[piece] = ChecksumOf(bytes + at, std::min(layout_.piece_bytes, options_.expert.bytes - at));
  }
}

absl::Status ExpertFileOpening::FillMapped() {
  RETURN_IF_ERROR(fill_(this));
  part_ = 2;
  for (int64_t i = 0; i < experts_; ++i) {
    Sum(i, Expert(i));
    if (!Report(layout_.data + i * layout_.stride)) return Stopped(layout_.data + i * layout_.stride);
  }
  return absl::OkStatus();
}

absl::Status ExpertFileOpening::FillOnDisk() {
  const int64_t most = std::clamp<int64_t>(options_.staging_bytes / layout_.stride, 1, experts_);
  const auto staging_bytes = static_cast<size_t>(most * layout_.stride);
  void* const staging = mmap(nullptr, staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (staging == MAP_FAILED) return Failed(path_, "no memory to build it");
  const absl::Cleanup give_back = [&] { munmap(staging, staging_bytes); };
  staging_ = static_cast<char*>(staging);
  // Past the page cache, where the file system can, so that what is written takes no memory.
  const std::string own_path = absl::StrCat("/proc/self/fd/", fd_.get());
  UniqueFd to(open(own_path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  if (to.get() < 0) to = UniqueFd(open(own_path.c_str(), O_WRONLY | O_CLOEXEC));
  if (to.get() < 0) return Failed(path_, "cannot open it for writing");
  const absl::Time begun = absl::Now();
  absl::Time next_log = begun + kLogEvery;
  for (staged_first_ = 0; staged_first_ < experts_; staged_first_ += staged_count_) {
    staged_count_ = std::min(most, experts_ - staged_first_);
    const int64_t bytes = staged_count_ * layout_.stride;
    std::memset(staging_, 0, static_cast<size_t>(bytes));
    RETURN_IF_ERROR(fill_(this));
    for (int64_t i = 0; i < staged_count_; ++i) Sum(staged_first_ + i, staging_ + i * layout_.stride);
    const int64_t at = layout_.data + staged_first_ * layout_.stride;
    for (int64_t done = 0; done < bytes;) {
      const ssize_t written = pwrite(to.get(), staging_ + done, static_cast<size_t>(bytes - done), at + done);
      if (written < 0 && errno == EINTR) continue;
      // Through the page cache, then: the file system took the flag at open, but not these blocks.
      if (written < 0 && errno == EINVAL && fcntl(to.get(), F_SETFL, 0) == 0 &&
          pwrite(to.get(), staging_ + done, 1, at + done) == 1)
        continue;
      if (written <= 0) return Failed(path_, "cannot write");
      done += written;
    }
    if (!Report(bytes)) return Stopped(at + bytes);
    if (const absl::Time now = absl::Now(); now >= next_log) {
      next_log = now + kLogEvery;
      LogInfo("packing experts: ", Mib(at + bytes), " of ", Mib(layout_.bytes), " in ", path_);
    }
  }
  LogInfo("packed ", experts_, " experts, ", Mib(layout_.bytes), ", in ",
          absl::FormatDuration(absl::Trunc(absl::Now() - begun, absl::Milliseconds(100))));
  return absl::OkStatus();
}

// Another process has the lock.
absl::Status ExpertFileOpening::AwaitBuilder() {
  int64_t reported[2] = {};
  if (pread(fd_.get(), reported, sizeof(reported), offsetof(Header, done)) < 0) return Failed(path_, "cannot read");
  const auto [done, builder] = reported;
  const absl::Time now = absl::Now();
  if (done != last_done_) {
    last_done_ = done;
    stands_still_at_ = now + options_.patience;
  }
  if (now >= stands_still_at_) {
    return absl::DeadlineExceededError(
        absl::StrCat("expert file ", path_, ": waited ", absl::FormatDuration(options_.patience), " for process ",
                     builder, ", which holds it and stands at ", done, " of ", layout_.bytes, " bytes"));
  }
  if (!progress_(done, all_parts())) return Stopped(done);
  absl::SleepFor(kPoll);
  return absl::OkStatus();
}

// Returns, once this process shares a usable file, whether it built it.
absl::StatusOr<bool> ExpertFileOpening::BecomeUsable() {
  for (bool built = false;;) {
    if (flock(fd_.get(), LOCK_SH | LOCK_NB) != 0) {
      RETURN_IF_ERROR(AwaitBuilder());
      continue;
    }
    struct stat status = {};
    if (fstat(fd_.get(), &status) != 0) return Failed(path_, "cannot stat");
    if (status.st_nlink == 0) {  // removed since it was opened
      RETURN_IF_ERROR(OpenFd());
      continue;
    }
    ASSIGN_OR_RETURN(std::string problem, Problem());
    if (problem.empty()) return built;
    // Writing takes an exclusive lock, since others may use the file or build it.  Acquiring that releases the shared
    // one, so another process may have been faster.
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      RETURN_IF_ERROR(AwaitBuilder());
      continue;
    }
    ASSIGN_OR_RETURN(problem, Problem());
    if (problem.empty()) continue;
    if (problem != kNew) LogWarn("expert file ", path_, " ", problem, ": building it again");
    if (const absl::Status failed = Build(); !failed.ok()) {
      unlink(path_.c_str());
      return failed;
    }
    built = true;
  }
}

absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFileOpening::Run() {
  if (identity_.size() > sizeof(Header::identity)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert file: its identity has ", identity_.size(), " bytes of ", sizeof(Header::identity)));
  }
  RETURN_IF_ERROR(OpenFd());
  ASSIGN_OR_RETURN(const bool built, BecomeUsable());
  // Writable for a driver that cannot pin memory as read-only.
  RETURN_IF_ERROR(Map(options_.device != DeviceKind::kCpu));
  auto file = std::unique_ptr<ExpertFile>(new ExpertFile());
  file->path_ = path_;
  file->fd_ = std::move(fd_);
  file->memory_ = std::exchange(memory_, nullptr);
  file->mapped_bytes_ = mapped_bytes();
  file->layout_ = layout_;
  file->built_ = built;
  return file;
}

absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFile::Open(const ExpertFileOptions& options, Fill fill,
                                                             Progress progress) {
  SY_CHECK(options.num_layers >= 1 && options.num_experts >= 1 && options.expert.bytes > 0 && options.piece_bytes > 0 &&
           options.piece_bytes % kPage == 0);
  return ExpertFileOpening(options, fill, progress).Run();
}

ExpertFile::~ExpertFile() { munmap(const_cast<char*>(memory_), static_cast<size_t>(mapped_bytes_)); }

void ExpertFile::Discard() const {
  struct stat mine = {}, named = {};
  if (fstat(fd_.get(), &mine) != 0 || stat(path_.c_str(), &named) != 0) return;
  if (mine.st_dev != named.st_dev || mine.st_ino != named.st_ino) return;
  if (unlink(path_.c_str()) == 0) LogWarn("expert file ", path_, " is damaged: removed, and built again");
}

uint64_t ExpertFile::SumAt(int64_t i) const {
  uint64_t sum;
  std::memcpy(&sum, memory_ + kTableAt + i * 8, 8);
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
