// Memory of this host in huge pages, where the system has them (madvise).  Uninitialised; munmap gives it back.
// Thread-safe.  Aborts where there is no address space.
#pragma once

#include <cstdint>

namespace switchyard {

inline constexpr int64_t kHugePageBytes = 2 << 20;
inline constexpr int64_t kSmallPageBytes = 4 << 10;

struct MappedMemory {
  void* data;
  int64_t bytes;  // of what is to be unmapped: in whole pages
};

// Begins and ends where huge pages do, so that nothing else is in them.
MappedMemory MapHugePages(int64_t bytes);

// Begins and ends where small pages do, behind what was mapped so before, in regions of huge pages: of thousands of
// matrices that have a few MB none then wastes the rest of a huge page.  Addresses are not used again.  More than half
// a region is as from MapHugePages.
inline constexpr int64_t kHugePageRegionBytes = 64 << 20;
MappedMemory MapBesideOthers(int64_t bytes);

}  // namespace switchyard
