// The checksum of an expert's bytes, in expert files and for copies.  It finds damage, not forgery.  Eight sums side by
// side make it as fast as memory.  Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace switchyard::moe {

class ExpertChecksum {
 public:
  ExpertChecksum() {
    for (uint64_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane] = kBasis + lane;
  }
  // Adds the next bytes.  REQUIRES: count is a multiple of 64 in all calls but the last.
  void Add(const char* bytes, int64_t count) {
    std::array<uint64_t, 8> lanes = lanes_;  // in registers
    int64_t at = 0;
    for (; at + 64 <= count; at += 64) {
      uint64_t words[8];
      std::memcpy(words, bytes + at, 64);
      for (int lane = 0; lane < 8; ++lane) lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
    }
    for (; at < count; ++at) lanes[0] = (lanes[0] ^ static_cast<uint8_t>(bytes[at])) * kPrime;
    lanes_ = lanes;
  }
  uint64_t value() const {
    uint64_t sum = kBasis;
    for (const uint64_t lane : lanes_) sum = (sum ^ lane ^ (lane >> 29)) * kPrime;
    return sum;
  }

 private:
  static constexpr uint64_t kBasis = 0xcbf29ce484222325u, kPrime = 0x100000001b3u;

  std::array<uint64_t, 8> lanes_;
};

inline uint64_t ChecksumOf(const char* bytes, int64_t count) {
  ExpertChecksum checksum;
  checksum.Add(bytes, count);
  return checksum.value();
}

}  // namespace switchyard::moe
