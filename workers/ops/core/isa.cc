#include "workers/ops/core/isa.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/env.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace switchyard::ops {
namespace {

constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__)
// Bits of XCR0: which registers the system saves when it switches threads.
constexpr uint64_t kYmmState = 0x6;
constexpr uint64_t kZmmState = 0xe6;
constexpr uint64_t kTileState = 0x60000;

uint64_t SavedState() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool Has(uint32_t reg, int bit) { return (reg >> bit) & 1; }

// Linux gives the 8 KB of tile state only to processes that request it.
bool AskForTiles() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXTileData) == 0;
#else
  return false;
#endif
}

Isa Detect() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kScalar;
  const bool osxsave = Has(c, 27), avx = Has(c, 28), fma = Has(c, 12), f16c = Has(c, 29);
  if (!osxsave || !avx || !fma || !f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Isa::kScalar;
  const uint64_t saved = SavedState();
  if (!Has(b, 5) || (saved & kYmmState) != kYmmState) return Isa::kScalar;
  const bool avx512 = Has(b, 16) && Has(b, 17) && Has(b, 30) && Has(b, 31);  // F, DQ, BW, VL
  if (!avx512 || (saved & kZmmState) != kZmmState) return Isa::kAvx2;
  const bool amx = Has(d, 22) && Has(d, 24);  // AMX-BF16, AMX-TILE
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !Has(a, 5)) return Isa::kAvx512;
  if (!amx || (saved & kTileState) != kTileState || !AskForTiles()) return Isa::kAvx512Bf16;
  return Isa::kAmx;
}
bool DetectByteDot(Isa isa) {
  uint32_t a, b, c, d;
  if (isa > DetectedIsa()) return false;
  if (isa == Isa::kAvx512) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && Has(c, 11);
  return isa == Isa::kAvx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && Has(a, 4);
}
#else
Isa Detect() { return Isa::kScalar; }
bool DetectByteDot(Isa) { return false; }
#endif

}  // namespace

const char* IsaName(Isa isa) { return kNames[static_cast<int>(isa)]; }

absl::StatusOr<Isa> ParseIsa(absl::string_view name) {
  for (int i = 0; i <= static_cast<int>(Isa::kAmx); ++i) {
    if (name == kNames[i]) return static_cast<Isa>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("SY_ISA: \"", name, "\" is none of scalar, avx2, avx512, avx512_bf16, amx"));
}

Isa DetectedIsa() {
  static const Isa isa = Detect();
  return isa;
}

bool HasByteDot(Isa isa) {
  static const bool avx2 = DetectByteDot(Isa::kAvx2), avx512 = DetectByteDot(Isa::kAvx512);
  return isa == Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 && avx2;
}

Isa CurrentIsa() {
  static const Isa isa = [] {
    const std::string setting = EnvString("SY_ISA");
    const absl::StatusOr<Isa> cap = ParseIsa(setting);
    return setting.empty() || !cap.ok() ? DetectedIsa() : std::min(*cap, DetectedIsa());
  }();
  return isa;
}

absl::Status CheckIsaSetting() {
  const std::string setting = EnvString("SY_ISA");
  return setting.empty() ? absl::OkStatus() : ParseIsa(setting).status();
}

}  // namespace switchyard::ops
