#include "scheduler/base/io/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace switchyard {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // reflected

// tables[i][b]: the change of the sum by byte b when i bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t i = 1; i < 8; ++i) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[i - 1][b];
      tables[i][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t LoadWord(const unsigned char* at) {
  return at[0] | static_cast<uint32_t>(at[1]) << 8 | static_cast<uint32_t>(at[2]) << 16 |
         static_cast<uint32_t>(at[3]) << 24;
}

// Takes and returns the inner state: the caller complements it.
uint32_t ByTables(const unsigned char* at, const unsigned char* end, uint32_t crc) {
  for (; end - at >= 8; at += 8) {
    const uint32_t low = crc ^ LoadWord(at), high = LoadWord(at + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
          kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
  }
  for (; at != end; ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)
bool HasInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

__attribute__((target("sse4.2"))) uint32_t ByInstruction(const unsigned char* at, const unsigned char* end,
                                                         uint32_t crc) {
  uint64_t wide = crc;
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; at != end; ++at) crc = _mm_crc32_u8(crc, *at);
  return crc;
}
#else
bool HasInstruction() { return false; }
constexpr auto ByInstruction = ByTables;
#endif

}  // namespace

uint32_t Crc32c(absl::string_view bytes, uint32_t crc) {
  const auto* const at = reinterpret_cast<const unsigned char*>(bytes.data());
  const unsigned char* const end = at + bytes.size();
  return ~(HasInstruction() ? ByInstruction(at, end, ~crc) : ByTables(at, end, ~crc));
}

uint32_t Crc32cByTables(absl::string_view bytes, uint32_t crc) {
  const auto* const at = reinterpret_cast<const unsigned char*>(bytes.data());
  return ~ByTables(at, at + bytes.size(), ~crc);
}

}  // namespace switchyard
