#include "workers/moe/experts/expert_checksum.h"

#include <cstring>

namespace switchyard::moe {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325u, kPrime = 0x100000001b3u;

}  // namespace

ExpertChecksum::ExpertChecksum() {
  for (uint64_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane] = kBasis + lane;
}

void ExpertChecksum::Add(const char* bytes, int64_t count) {
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

uint64_t ExpertChecksum::value() const {
  uint64_t sum = kBasis;
  for (const uint64_t lane : lanes_) sum = (sum ^ lane ^ (lane >> 29)) * kPrime;
  return sum;
}

uint64_t ChecksumOf(const char* bytes, int64_t count) {
  ExpertChecksum checksum;
  checksum.Add(bytes, count);
  return checksum.value();
}

}  // namespace switchyard::moe
