// The checksum of an expert's bytes: the expert file's, and what says that a copy is what its source is.
//
// It finds damage, not forgery.  Eight sums side by side, so that memory is what it waits for.  Plain value.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::moe {

class ExpertChecksum {
 public:
  ExpertChecksum();
  // The next bytes.  REQUIRES: of all calls but the last, count is a multiple of 64.
  void Add(const char* bytes, int64_t count);
  uint64_t value() const;

 private:
  std::array<uint64_t, 8> lanes_;
};

uint64_t ChecksumOf(const char* bytes, int64_t count);

}  // namespace switchyard::moe
