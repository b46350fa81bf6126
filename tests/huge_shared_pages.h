// Whether this kernel gives shared memory huge pages when it is asked for them (MADV_COLLAPSE), as workers ask
// (workers/serving/shared_weights.h).
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace switchyard::test {

inline bool HasHugeSharedPages() {
  constexpr size_t kHuge = 2 << 20;
  constexpr int kCollapse = 25;
  const int file = memfd_create("probe", MFD_CLOEXEC);
  void* const room = mmap(nullptr, 2 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool has = false;
  if (file >= 0 && room != MAP_FAILED && ftruncate(file, kHuge) == 0) {
    char* const at = static_cast<char*>(room) + (-reinterpret_cast<uintptr_t>(room)) % kHuge;
    if (mmap(at, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) {
      at[0] = 1;
      for (int tries = 0; tries < 2 && !has; ++tries) has = madvise(at, kHuge, kCollapse) == 0;
    }
  }
  if (room != MAP_FAILED) munmap(room, 2 * kHuge);
  if (file >= 0) close(file);
  return has;
}

}  // namespace switchyard::test
