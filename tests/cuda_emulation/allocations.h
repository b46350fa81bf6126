// The emulated memory: its allocations, and the allocation of an address.  Thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace cuda_emulation {

enum class MemoryKind { kDevice, kPinned, kRegistered };

struct Allocation {
  char* begin = nullptr;
  size_t bytes = 0;  // as asked for
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  char* mapping = nullptr;
  size_t mapping_bytes = 0;  // with the inaccessible page after it
};

// Memory with every byte 0xFF up to 64 MiB (0 beyond), aligned to 256; an inaccessible page follows its end (rounded up
// to 256).  nullptr if the device's capacity is exceeded.
void* Allocate(MemoryKind kind, int device, size_t bytes);
bool Release(
    void* pointer,
    MemoryKind kind);  // false: not the begin of such an allocation.  Aborts if bytes past the end were written.
bool RegisterHost(void* pointer, size_t bytes);
bool UnregisterHost(void* pointer);

// The allocation with the address; its end counts as in it if `end_too`.
std::optional<Allocation> FindAllocation(const void* address, bool end_too = false);
std::string DescribeAddress(const void* address);  // "0x..: 12 bytes past the end of 4096 bytes of device 0"

}  // namespace cuda_emulation
