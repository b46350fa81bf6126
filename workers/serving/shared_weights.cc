#include "workers/serving/shared_weights.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/memory_file.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kPiece = 64 << 20;

std::string PathOf(int fd) { return fd < 0 ? "" : PathOfMemoryFile(fd); }

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
  const absl::Status published = TryPublish();
  if (!published.ok()) LogWarn("weights are not shared with the machine's other workers: ", published.message());
  return published.ok();
}

absl::Status SharedWeights::TryPublish() {
  ASSIGN_OR_RETURN(const UniqueFd file, MakeMemoryFile(WholeHugePages(bytes_)));
  ASSIGN_OR_RETURN(UniqueFd readable, ReopenToRead(file.get()));
  // Piece by piece, so that no more than one is held twice.  After an error the pieces so far hold the same bytes.
  int64_t small = 0;
  for (int64_t done = 0; done < bytes_; done += kPiece) {
    const int64_t piece = std::min(kPiece, bytes_ - done);
    ASSIGN_OR_RETURN(MemoryFileView view,
                     MemoryFileView::Map(file.get(), done, WholeHugePages(piece), /*to_write=*/true));
    ASSIGN_OR_RETURN(const int64_t small_here, view.FillWithHugePages(0, WholeHugePages(piece)));
    small += small_here;
    std::memcpy(view.data(), data_ + done, static_cast<size_t>(piece));
    Map(readable.get(), done, WholeHugePages(piece));
  }
  RETURN_IF_ERROR(SealMemoryFile(file.get()));
  if (small > 0) LogWarn("shared weights: ", Mib(small), " are in small pages, as huge ones could not be had");
  file_ = std::move(readable);
  return absl::OkStatus();
}

bool SharedWeights::MapOf(int owner, const std::string& path) {
  const absl::Status mapped = TryMapOf(path);
  if (!mapped.ok()) LogWarn("weights are not shared with rank ", owner, " on the same machine: ", mapped.message());
  return mapped.ok();
}

absl::Status SharedWeights::TryMapOf(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenMemoryFile(path, WholeHugePages(bytes_)));
  struct stat theirs = {}, mine = {};
  if (fstat(file.get(), &theirs) == 0 && fstat(file_.get(), &mine) == 0 && mine.st_dev == theirs.st_dev &&
      mine.st_ino == theirs.st_ino) {
    return absl::OkStatus();
  }
  for (int64_t done = 0; done < bytes_; done += kPiece) {
    const int64_t piece = std::min(kPiece, bytes_ - done);
    ASSIGN_OR_RETURN(const MemoryFileView view,
                     MemoryFileView::Map(file.get(), done, WholeHugePages(piece), /*to_write=*/false));
    if (std::memcmp(view.data(), data_ + done, static_cast<size_t>(piece)) != 0)
      return absl::FailedPreconditionError(absl::StrCat(path, ": other bytes"));
  }
  Map(file.get(), 0, WholeHugePages(bytes_));
  file_ = std::move(file);
  return absl::OkStatus();
}

}  // namespace switchyard::worker
