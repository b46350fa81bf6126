#include "tests/cuda_emulation/allocations.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/devices.h"

namespace cuda_emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlign = 256;
constexpr size_t kPoisoned = size_t{64} << 20;
constexpr size_t kFreedKept = 1024;  // mappings that stay, inaccessible, so that a late access faults

std::mutex mu;
std::map<const char*, Allocation> live;  // by begin
std::deque<Allocation> freed;
std::array<size_t, kMaxDevices> in_use{};

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

const char* KindName(MemoryKind kind) {
  return kind == MemoryKind::kDevice   ? "device"
         : kind == MemoryKind::kPinned ? "page-locked memory of device"
                                       : "registered memory of device";
}

std::string Describe(const Allocation& a) {
  return std::to_string(a.bytes) + " bytes of " + KindName(a.kind) + " " + std::to_string(a.device);
}

// REQUIRES: mu is held.
const Allocation* Find(const char* address, bool end_too) {
  auto next = live.upper_bound(address);
  if (next == live.begin()) return nullptr;
  const Allocation& a = std::prev(next)->second;
  return address < a.begin + a.bytes || (end_too && address == a.begin + a.bytes) || address == a.begin ? &a : nullptr;
}

}  // namespace

size_t MemoryInUse(int device) {
  std::lock_guard lock(mu);
  return in_use[static_cast<size_t>(device)];
}

void* Allocate(MemoryKind kind, int device, size_t bytes) {
  const size_t rounded = RoundUp(std::max<size_t>(bytes, 1), kAlign);
  if (rounded < bytes) return nullptr;
  std::lock_guard lock(mu);
  size_t& used = in_use[static_cast<size_t>(device)];
  if (kind == MemoryKind::kDevice && (rounded > MemoryCapacity() || used > MemoryCapacity() - rounded)) return nullptr;
  Allocation a{nullptr, bytes, kind, device, nullptr, RoundUp(rounded, kPage) + kPage};
  void* mapping = mmap(nullptr, a.mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  a.mapping = static_cast<char*>(mapping);
  char* end = a.mapping + a.mapping_bytes - kPage;
  if (mprotect(end, kPage, PROT_NONE) != 0) std::abort();
  a.begin = end - rounded;
  std::memset(a.begin, 0xFF, std::min(rounded, kPoisoned));
  std::memset(a.begin + bytes, 0xFF, rounded - bytes);
  if (kind == MemoryKind::kDevice) used += rounded;
  live[a.begin] = a;
  return a.begin;
}

bool Release(void* pointer, MemoryKind kind) {
  std::lock_guard lock(mu);
  const auto found = live.find(static_cast<char*>(pointer));
  if (found == live.end() || found->second.kind != kind) return false;
  const Allocation a = found->second;
  const size_t rounded = RoundUp(std::max<size_t>(a.bytes, 1), kAlign);
  for (size_t i = a.bytes; i < rounded; ++i) {
    if (a.begin[i] == static_cast<char>(0xFF)) continue;
    std::fprintf(stderr, "cuda_emulation: %zu bytes past the end of %s somebody has written\n", i - a.bytes,
                 Describe(a).c_str());
    std::abort();
  }
  live.erase(found);
  if (kind == MemoryKind::kDevice) in_use[static_cast<size_t>(a.device)] -= rounded;
  // Inaccessible, and without its pages.
  if (mmap(a.mapping, a.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
      MAP_FAILED) {
    std::abort();
  }
  freed.push_back(a);
  if (freed.size() > kFreedKept) {
    munmap(freed.front().mapping, freed.front().mapping_bytes);
    freed.pop_front();
  }
  return true;
}

bool RegisterHost(void* pointer, size_t bytes) {
  std::lock_guard lock(mu);
  if (Find(static_cast<char*>(pointer), false) != nullptr) return false;
  Allocation a;
  a.begin = static_cast<char*>(pointer);
  a.bytes = bytes;
  a.kind = MemoryKind::kRegistered;
  a.device = CurrentDevice();
  live[a.begin] = a;
  return true;
}

bool UnregisterHost(void* pointer) {
  std::lock_guard lock(mu);
  const auto found = live.find(static_cast<char*>(pointer));
  if (found == live.end() || found->second.kind != MemoryKind::kRegistered) return false;
  live.erase(found);
  return true;
}

std::optional<Allocation> FindAllocation(const void* address, bool end_too) {
  std::lock_guard lock(mu);
  const Allocation* a = Find(static_cast<const char*>(address), end_too);
  return a == nullptr ? std::nullopt : std::optional(*a);
}

std::string DescribeAddress(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p: ", address);
  const char* byte = static_cast<const char*>(address);
  std::lock_guard lock(mu);
  for (auto a = freed.rbegin(); a != freed.rend(); ++a) {
    if (byte >= a->mapping && byte < a->mapping + a->mapping_bytes) return text + ("in freed " + Describe(*a));
  }
  if (const Allocation* a = Find(byte, false)) {
    return text + std::to_string(byte - a->begin) + " bytes into " + Describe(*a);
  }
  auto next = live.upper_bound(byte);
  if (next != live.begin()) {
    const Allocation& a = std::prev(next)->second;
    if (byte - (a.begin + a.bytes) < (1 << 20)) {
      return text + std::to_string(byte - (a.begin + a.bytes)) + " bytes past the end of " + Describe(a);
    }
  }
  return std::string(text) + "not near any allocation";
}

}  // namespace cuda_emulation
