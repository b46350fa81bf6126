#include "workers/tensor/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/check.h"

namespace switchyard {
namespace {

int64_t WholePages(int64_t bytes, int64_t page) { return (bytes + page - 1) / page * page; }

// What is left of the last region.
struct Region {
  absl::Mutex mu;
  char* next ABSL_GUARDED_BY(mu) = nullptr;
  int64_t left ABSL_GUARDED_BY(mu) = 0;
};

}  // namespace

MappedMemory MapHugePages(int64_t bytes) {
  // Maps more, so that the data can start on a huge page's boundary.
  const int64_t mapped = WholePages(bytes, kHugePageBytes);
  char* const base =
      static_cast<char*>(mmap(nullptr, static_cast<size_t>(mapped + kHugePageBytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  SY_CHECK(base != MAP_FAILED);
  const auto lead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(base) % kHugePageBytes);
  if (lead > 0) munmap(base, static_cast<size_t>(lead));
  if (lead < kHugePageBytes) munmap(base + lead + mapped, static_cast<size_t>(kHugePageBytes - lead));
  madvise(base + lead, static_cast<size_t>(mapped), MADV_HUGEPAGE);
  return {.data = base + lead, .bytes = mapped};
}

// A piece that is unmapped leaves a hole.  The kernel gives back a huge page that it shares with others, cut in small
// ones, when it wants memory.
MappedMemory MapBesideOthers(int64_t bytes) {
  static Region* const region = new Region();
  SY_CHECK_EQ(kSmallPageBytes % sysconf(_SC_PAGESIZE), 0);
  bytes = WholePages(bytes, kSmallPageBytes);
  if (bytes > kHugePageRegionBytes / 2) return MapHugePages(bytes);
  absl::MutexLock lock(&region->mu);
  if (bytes > region->left) {
    if (region->left > 0) munmap(region->next, static_cast<size_t>(region->left));
    const MappedMemory fresh = MapHugePages(kHugePageRegionBytes);
    region->next = static_cast<char*>(fresh.data);
    region->left = fresh.bytes;
  }
  const MappedMemory memory = {.data = region->next, .bytes = bytes};
  region->next += bytes;
  region->left -= bytes;
  return memory;
}

}  // namespace switchyard
