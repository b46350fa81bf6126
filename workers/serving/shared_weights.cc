#include "workers/serving/shared_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/machine_memory.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kPiece = 64 << 20;
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;  // that a file must have whose bytes are not to change

// The processors that this process may use where the machine has memory of more than one distance; else empty.
std::string Processors() {
  if (access("/sys/devices/system/node/node1", F_OK) != 0) return "";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "Cpus_allowed_list:")) return line;
  }
  return "";
}

// The same for processes of one machine, bound to the same processors, that see each other's files in /proc; empty:
// unknown.
std::string MachineName() {
  struct stat processes = {};
  const std::string name = ReadMachineMemory().pools.front().name;
  if (name.empty() || stat("/proc/self/ns/pid", &processes) != 0) return "";
  return absl::StrCat(name, " ", processes.st_ino, " ", Processors());
}

// A part of a file in memory, whole huge pages; null if it cannot be.
class View {
 public:
  View(int fd, int64_t offset, int64_t bytes, int protection) : bytes_(static_cast<size_t>(bytes)) {
    // Addresses for one page more, so that the view can start where a huge page may.
    void* const room = mmap(nullptr, room_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return;
    room_ = static_cast<char*>(room);
    char* const aligned = room_ + (-reinterpret_cast<uintptr_t>(room_)) % kHugePageBytes;
    if (mmap(aligned, bytes_, protection, MAP_SHARED | MAP_FIXED, fd, offset) != MAP_FAILED) data_ = aligned;
  }
  ~View() {
    if (room_ != nullptr) munmap(room_, room_bytes());
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  char* data() const { return data_; }

  // Gives a hole of the file huge pages of zeros, but small ones where there are none to be had.  Returns how many
  // became huge; -1: this kernel has none for shared memory.
  int64_t GetHugePages() const {
    int64_t huge = 0;
    for (size_t at = 0; at < bytes_; at += kHugePageBytes) {
      data_[at] = 0;  // the kernel enlarges pages that are there
      int done = madvise(data_ + at, kHugePageBytes, kCollapse);
      if (done != 0 && errno == EAGAIN) done = madvise(data_ + at, kHugePageBytes, kCollapse);
      if (done != 0 && errno == EINVAL && at == 0) return -1;
      huge += done == 0 ? 1 : 0;
    }
    return huge;
  }

 private:
  // MADV_COLLAPSE of Linux 6.1: of what transparent_hugepage/shmem_enabled may say only `deny` prevents it.
  static constexpr int kCollapse = 25;
  size_t room_bytes() const { return bytes_ + kHugePageBytes; }

  const size_t bytes_;
  char* room_ = nullptr;
  char* data_ = nullptr;
};

int64_t HugePagesOf(int64_t bytes) { return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; }

std::string PathOf(int fd) { return fd < 0 ? "" : absl::StrCat("/proc/", getpid(), "/fd/", fd); }

// A rank's part of the first exchange: what must be equal to share, and the memory file if it has one already.
std::string Offer(int64_t bytes, int fd) {
  const std::string machine = bytes >= SharedWeights::kLeastBytes ? MachineName() : "";
  return machine.empty() ? "" : absl::StrCat(machine, " ", bytes, "\n", PathOf(fd));
}

std::string GroupOf(const std::string& offer) { return offer.substr(0, offer.find('\n')); }
bool HasFile(const std::string& offer) { return !offer.empty() && offer.back() != '\n'; }

// The rank whose memory those of this rank's machine take: the first that has a file, else the first.  -1: it is alone.
int OwnerOf(int rank, const std::vector<std::string>& offers) {
  const std::string& mine = offers[static_cast<size_t>(rank)];
  int first = -1, workers = 0, with_file = -1;
  for (int other = 0; !mine.empty() && other < static_cast<int>(offers.size()); ++other) {
    const std::string& theirs = offers[static_cast<size_t>(other)];
    if (GroupOf(theirs) != GroupOf(mine)) continue;
    ++workers;
    if (first < 0) first = other;
    if (with_file < 0 && HasFile(theirs)) with_file = other;
  }
  if (workers < 2) return -1;
  return with_file < 0 ? first : with_file;
}

}  // namespace

static_assert(SharedWeights::kLeastBytes >= kHugePageBytes, "a Buffer has huge pages of its own from there on");

SharedWeights::SharedWeights(const Buffer& memory)
    : data_(static_cast<char*>(memory.data())), bytes_(memory.device().is_cpu() ? memory.bytes() : 0) {
  if (bytes_ >= kLeastBytes) SY_CHECK_EQ(reinterpret_cast<uintptr_t>(data_) % kHugePageBytes, 0U);
}

absl::Status SharedWeights::Share(int rank, int world, comm::RendezvousStore* store, absl::Time deadline) {
  shared_ = false;
  if (world == 1) return absl::OkStatus();
  std::vector<std::string> offers;
  ASSIGN_OR_RETURN(offers,
                   comm::ExchangeValues(store, "shared_weights", rank, world, Offer(bytes_, file_.get()), deadline));
  // All ranks know whether there is anything to share.
  bool any = false;
  for (int r = 0; r < world; ++r) any = any || OwnerOf(r, offers) >= 0;
  if (!any) return absl::OkStatus();
  const int owner = OwnerOf(rank, offers);
  const bool published = owner == rank && (file_.get() >= 0 || Publish());
  std::vector<std::string> paths;
  ASSIGN_OR_RETURN(paths, comm::ExchangeValues(store, "shared_weights_file", rank, world,
                                               published ? PathOf(file_.get()) : "", deadline));
  if (owner < 0 || paths[static_cast<size_t>(owner)].empty()) return absl::OkStatus();
  shared_ = published || MapOf(owner, paths[static_cast<size_t>(owner)]);
  if (shared_) LogInfo("rank ", rank, ": ", Mib(bytes_), " of weights are rank ", owner, "'s, on the same machine");
  return absl::OkStatus();
}

void SharedWeights::Map(int file, int64_t offset, int64_t bytes) const {
  const void* const mapped =
      mmap(data_ + offset, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED | MAP_FIXED, file, offset);
  // What was there may be gone.
  SY_CHECK(mapped != MAP_FAILED);
}

bool SharedWeights::Publish() {
  const auto keep = [](const char* what) {
    LogWarn("weights are not shared with the machine's other workers: ", what, ": ", std::strerror(errno));
    return false;
  };
  const UniqueFd file(memfd_create("switchyard-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return keep("memfd_create");
  if (ftruncate(file.get(), HugePagesOf(bytes_)) != 0) return keep("ftruncate");
  UniqueFd readable(open(absl::StrCat("/proc/self/fd/", file.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (readable.get() < 0) return keep("/proc/self/fd");
  // Piece by piece, so that no more than one is held twice.  After an error the pieces so far hold the same bytes.
  int64_t small = HugePagesOf(bytes_) / kHugePageBytes;
  for (int64_t done = 0; done < bytes_; done += kPiece) {
    const int64_t piece = std::min(kPiece, bytes_ - done);
    const View view(file.get(), done, HugePagesOf(piece), PROT_READ | PROT_WRITE);
    if (view.data() == nullptr) return keep("mmap");
    const int64_t huge = view.GetHugePages();
    if (huge < 0) return keep("huge pages (from Linux 6.1 on, unless transparent_hugepage/shmem_enabled is deny)");
    small -= huge;
    std::memcpy(view.data(), data_ + done, static_cast<size_t>(piece));
    Map(readable.get(), done, HugePagesOf(piece));
  }
  if (fcntl(file.get(), F_ADD_SEALS, kSeals | F_SEAL_GROW | F_SEAL_SEAL) != 0) return keep("sealing it");
  if (small > 0)
    LogWarn("shared weights: ", Mib(small * kHugePageBytes), " are in small pages, as huge ones could not be had");
  file_ = std::move(readable);
  return true;
}

bool SharedWeights::MapOf(int owner, const std::string& path) {
  const auto keep = [&](absl::string_view why) {
    LogWarn("weights are not shared with rank ", owner, " on the same machine: ", path, ": ", why);
    return false;
  };
  // A path that a stranger names must not block.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return keep(std::strerror(errno));
  struct stat theirs = {}, mine = {};
  if (fstat(file.get(), &theirs) != 0 || theirs.st_size != HugePagesOf(bytes_)) return keep("another size");
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return keep("its bytes may change");
  if (fstat(file_.get(), &mine) == 0 && mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino) return true;
  for (int64_t done = 0; done < bytes_; done += kPiece) {
    const int64_t piece = std::min(kPiece, bytes_ - done);
    const View view(file.get(), done, HugePagesOf(piece), PROT_READ);
    if (view.data() == nullptr) return keep(std::strerror(errno));
    if (std::memcmp(view.data(), data_ + done, static_cast<size_t>(piece)) != 0) return keep("other bytes");
  }
  Map(file.get(), 0, HugePagesOf(bytes_));
  file_ = std::move(file);
  return true;
}

}  // namespace switchyard::worker
