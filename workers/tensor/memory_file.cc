#include "workers/tensor/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/machine_memory.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;  // that a file must have whose bytes are not to change
// MADV_COLLAPSE of Linux 6.1: of what transparent_hugepage/shmem_enabled may say only `deny` prevents it.
constexpr int kCollapse = 25;

absl::Status ErrorOf(const char* what) { return absl::ErrnoToStatus(errno, what); }

// The processors that this process may use where the machine has memory of more than one distance; else empty.
std::string Processors() {
  if (access("/sys/devices/system/node/node1", F_OK) != 0) return "";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "Cpus_allowed_list:")) return line;
  }
  return "";
}

}  // namespace

int64_t WholeHugePages(int64_t bytes) { return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; }

absl::StatusOr<UniqueFd> MakeMemoryFile(int64_t bytes) {
  UniqueFd file(memfd_create("switchyard-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return ErrorOf("memfd_create");
  if (ftruncate(file.get(), bytes) != 0) return ErrorOf("ftruncate");
  return file;
}

absl::StatusOr<UniqueFd> ReopenToRead(int file) {
  UniqueFd readable(open(absl::StrCat("/proc/self/fd/", file).c_str(), O_RDONLY | O_CLOEXEC));
  if (readable.get() < 0) return ErrorOf("/proc/self/fd");
  return readable;
}

absl::Status SealMemoryFile(int file) {
  if (fcntl(file, F_ADD_SEALS, kSeals | F_SEAL_GROW | F_SEAL_SEAL) != 0) return ErrorOf("sealing it");
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenMemoryFile(const std::string& path, int64_t bytes) {
  // A path that a stranger names must not block.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return ErrorOf(path.c_str());
  struct stat is = {};
  if (fstat(file.get(), &is) != 0 || is.st_size != bytes)
    return absl::FailedPreconditionError(absl::StrCat(path, ": another size"));
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return absl::FailedPreconditionError(absl::StrCat(path, ": its bytes may change"));
  return file;
}

std::string PathOfMemoryFile(int file) { return absl::StrCat("/proc/", getpid(), "/fd/", file); }

std::string MachineName() {
  struct stat processes = {};
  const std::string name = ReadMachineMemory().pools.front().name;
  if (name.empty() || stat("/proc/self/ns/pid", &processes) != 0) return "";
  return absl::StrCat(name, " ", processes.st_ino, " ", Processors());
}

absl::Status CheckMemoryFiles() {
  ASSIGN_OR_RETURN(const UniqueFd file, MakeMemoryFile(kHugePageBytes));
  {
    ASSIGN_OR_RETURN(MemoryFileView view, MemoryFileView::Map(file.get(), 0, kHugePageBytes, /*to_write=*/true));
    RETURN_IF_ERROR(view.FillWithHugePages(0, kHugePageBytes).status());
  }
  RETURN_IF_ERROR(SealMemoryFile(file.get()));
  ASSIGN_OR_RETURN(const UniqueFd readable, OpenMemoryFile(PathOfMemoryFile(file.get()), kHugePageBytes));
  return MemoryFileView::Map(readable.get(), 0, kHugePageBytes, /*to_write=*/false).status();
}

absl::StatusOr<MemoryFileView> MemoryFileView::Map(int file, int64_t offset, int64_t bytes, bool to_write) {
  // Addresses for one page more, so that the view can start where a huge page may.
  void* const room = mmap(nullptr, static_cast<size_t>(bytes + kHugePageBytes), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return ErrorOf("mmap");
  MemoryFileView view;
  view.room_ = static_cast<char*>(room);
  view.bytes_ = bytes;
  char* const aligned = view.room_ + (-reinterpret_cast<uintptr_t>(room)) % kHugePageBytes;
  const int protection = to_write ? PROT_READ | PROT_WRITE : PROT_READ;
  if (mmap(aligned, static_cast<size_t>(bytes), protection, MAP_SHARED | MAP_FIXED, file, offset) == MAP_FAILED)
    return ErrorOf("mmap");
  view.data_ = aligned;
  return view;
}

MemoryFileView& MemoryFileView::operator=(MemoryFileView&& other) noexcept {
  std::swap(room_, other.room_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryFileView::~MemoryFileView() {
  if (room_ != nullptr) munmap(room_, static_cast<size_t>(bytes_ + kHugePageBytes));
}

absl::StatusOr<int64_t> MemoryFileView::FillWithHugePages(int64_t offset, int64_t bytes) {
  int64_t small = 0;
  for (int64_t at = offset; at < offset + bytes; at += kHugePageBytes) {
    data_[at] = 0;  // the kernel enlarges pages that are there
    int done = madvise(data_ + at, kHugePageBytes, kCollapse);
    if (done != 0 && errno == EAGAIN) done = madvise(data_ + at, kHugePageBytes, kCollapse);
    if (done != 0 && errno == EINVAL && at == 0) {  // (a later page's is its own)
      return absl::UnimplementedError(
          "huge pages (from Linux 6.1 on, unless transparent_hugepage/shmem_enabled is deny)");
    }
    small += done == 0 ? 0 : kHugePageBytes;
  }
  return small;
}

}  // namespace switchyard
