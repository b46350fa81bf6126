#include "workers/moe/experts/expert_file_builder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kAllocatedAtOnce = 1 << 30;
constexpr absl::Duration kLogEvery = absl::Seconds(2);

}  // namespace

char* ExpertFileBuilder::At(int layer, int expert) {
  const ExpertFileLayout& layout = format_.layout;
  if (!options_.on_disk) return mapping_.get() + layout.OffsetOf(layer, expert);
  const int64_t at = layout.IndexOf(layer, expert) - staged_first_;
  return 0 <= at && at < staged_count_ ? staging_ + at * layout.stride : nullptr;
}

bool ExpertFileBuilder::Report(int64_t bytes_done) {
  const ExpertFileLayout& layout = format_.layout;
  const int64_t done = std::min(layout.bytes, staged_first_ * layout.stride + bytes_done) + part_ * layout.bytes;
  mapping_.header()->done.store(done);
  return progress_(done, layout.bytes * PartsOfBuilding(options_));
}

absl::Status ExpertFileBuilder::Build() {
  if (ftruncate(fd_, 0) != 0) return ExpertFileError(format_.path, "cannot empty");
  const int64_t wanted = IsInMemory(options_.dir) ? INT64_MAX : format_.layout.bytes;
  RemoveUnusedExpertFiles(options_.dir, format_.path, wanted);
  RETURN_IF_ERROR(TakeRoom());
  ASSIGN_OR_RETURN(mapping_, ExpertFileMapping::Map(format_, fd_, /*writable=*/true));
  mapping_.header()->builder.store(getpid());
  part_ = 1;
  RETURN_IF_ERROR(options_.on_disk ? FillOnDisk() : FillMapped());
  format_.WriteHeader(mapping_.get());
  if (msync(mapping_.get(), static_cast<size_t>(mapping_.bytes()), MS_SYNC) != 0 || fdatasync(fd_) != 0)
    return ExpertFileError(format_.path, "cannot write");
  // Last, so that a process that sees the mark sees the rest.
  mapping_.header()->state = ExpertFileHeader::kComplete;
  if (msync(mapping_.get(), kExpertTableAt, MS_SYNC) != 0) return ExpertFileError(format_.path, "cannot write");
  return absl::OkStatus();
}

absl::Status ExpertFileBuilder::CheckRoom() const {
  struct statvfs room = {};
  if (fstatvfs(fd_, &room) != 0) return ExpertFileError(format_.path, "cannot stat its file system");
  int64_t free = static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_frsize);
  if (IsInMemory(options_.dir)) free = std::min(free, options_.available_bytes);
  if (format_.layout.bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("expert file: ", format_.experts, " experts take ",
                                                   Mib(format_.layout.bytes), ", ", options_.dir, " has ", Mib(free),
                                                   "; name another directory with --expert_file_dir"));
}

// All of it: a full file system would raise a signal later, in a write to the mapping.
absl::Status ExpertFileBuilder::TakeRoom() {
  RETURN_IF_ERROR(CheckRoom());
  const int64_t all = format_.layout.bytes;
  for (int64_t at = 0; at < all; at += kAllocatedAtOnce) {
    const int64_t bytes = std::min(kAllocatedAtOnce, all - at);
    if (const int error = posix_fallocate(fd_, at, bytes); error != 0) {
      errno = error;
      return ExpertFileError(format_.path, absl::StrCat("no room for ", Mib(all)));
    }
    // Not mapped yet, but others wait already.
    const int64_t done[] = {at + bytes, getpid()};
    if (pwrite(fd_, done, sizeof(done), offsetof(ExpertFileHeader, done)) != sizeof(done))
      return ExpertFileError(format_.path, "cannot write");
    if (!progress_(at + bytes, all * PartsOfBuilding(options_))) return ExpertFileStopped(format_.path, at + bytes);
  }
  return absl::OkStatus();
}

absl::Status ExpertFileBuilder::FillMapped() {
  RETURN_IF_ERROR(fill_(this));
  part_ = 2;
  for (int64_t i = 0; i < format_.experts; ++i) {
    format_.WriteSums(i, format_.Expert(i, mapping_.get()), mapping_.get());
    const int64_t done = format_.layout.data + i * format_.layout.stride;
    if (!Report(done)) return ExpertFileStopped(format_.path, done);
  }
  return absl::OkStatus();
}

absl::Status ExpertFileBuilder::FillOnDisk() {
  const int64_t experts = format_.experts, stride = format_.layout.stride;
  const int64_t most = std::clamp<int64_t>(options_.staging_bytes / stride, 1, experts);
  const auto staging_bytes = static_cast<size_t>(most * stride);
  void* const staging = mmap(nullptr, staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (staging == MAP_FAILED) return ExpertFileError(format_.path, "no memory to build it");
  const absl::Cleanup give_back = [&] { munmap(staging, staging_bytes); };
  staging_ = static_cast<char*>(staging);
  const std::string own_path = absl::StrCat("/proc/self/fd/", fd_);
  UniqueFd to(open(own_path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  if (to.get() < 0) to = UniqueFd(open(own_path.c_str(), O_WRONLY | O_CLOEXEC));
  if (to.get() < 0) return ExpertFileError(format_.path, "cannot open it for writing");
  const absl::Time begun = MonotonicNow();
  absl::Time next_log = begun + kLogEvery;
  for (staged_first_ = 0; staged_first_ < experts; staged_first_ += staged_count_) {
    staged_count_ = std::min(most, experts - staged_first_);
    const int64_t bytes = staged_count_ * stride, end = format_.layout.data + staged_first_ * stride + bytes;
    std::memset(staging_, 0, static_cast<size_t>(bytes));
    RETURN_IF_ERROR(fill_(this));
    for (int64_t i = 0; i < staged_count_; ++i) {
      format_.WriteSums(staged_first_ + i, staging_ + i * stride, mapping_.get());
    }
    RETURN_IF_ERROR(WriteStaged(to.get()));
    if (!Report(bytes)) return ExpertFileStopped(format_.path, end);
    if (const absl::Time now = MonotonicNow(); now >= next_log) {
      next_log = now + kLogEvery;
      LogInfo("packing experts: ", Mib(end), " of ", Mib(format_.layout.bytes), " in ", format_.path);
    }
  }
  LogInfo("packed ", experts, " experts, ", Mib(format_.layout.bytes), ", in ",
          absl::FormatDuration(absl::Trunc(MonotonicNow() - begun, absl::Milliseconds(100))));
  return absl::OkStatus();
}

absl::Status ExpertFileBuilder::WriteStaged(int to) {
  const int64_t bytes = staged_count_ * format_.layout.stride;
  const int64_t at = format_.layout.data + staged_first_ * format_.layout.stride;
  for (int64_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(to, staging_ + done, static_cast<size_t>(bytes - done), at + done);
    if (written < 0 && errno == EINTR) continue;
    // Through the page cache, then: the file system took the flag at open, but not these blocks.
    if (written < 0 && errno == EINVAL && fcntl(to, F_SETFL, 0) == 0 && pwrite(to, staging_ + done, 1, at + done) == 1)
      continue;
    if (written <= 0) return ExpertFileError(format_.path, "cannot write");
    done += written;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::moe
