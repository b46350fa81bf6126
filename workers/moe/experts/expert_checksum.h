// The checksum of an expert's bytes, in expert files and for copies.  It finds damage, not forgery.  Eight sums side by
// side make it as fast as memory.  Plain value.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::moe {

class ExpertChecksum {
 public:
  ExpertChecksum();
  // Adds the next bytes.  REQUIRES: count is a multiple of 64 in all calls but the last.
  void Add(const char* bytes, int64_t count);
  uint64_t value() const;

 private:
  std::array<uint64_t, 8> lanes_;
};

uint64_t ChecksumOf(const char* bytes, int64_t count);

}  // namespace switchyard::moe
