// How fast one core decodes GGUF's blocks, for each type: GB/s of floats written, and of blocks read.
// usage: gguf_decode_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "workers/checkpoint/gguf/block_formats.h"

namespace switchyard::checkpoint {
namespace {

constexpr int64_t kElements = 1 << 16;  // 256 KiB of floats: in the cache, as a loader's pieces are
constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.05;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Measure(const GgufBlockFormat& format) {
  std::vector<uint8_t> blocks(kElements / format.elements * format.bytes);
  std::mt19937 random(1);
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random() & 0x3f);  // without infinities
  std::vector<float> out(kElements);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    int64_t times = 0;
    const double begin = Seconds();
    double end = begin;
    while (end - begin < kRoundSeconds) {
      DecodeBlocks(static_cast<GgufType>(format.type), blocks.data(), kElements, out.data());
      ++times;
      end = Seconds();
    }
    best = std::min(best, (end - begin) / static_cast<double>(times));
  }
  std::printf("%-8s %6.2f GB/s of floats %6.2f GB/s of blocks\n", format.name, kElements * 4 / best / 1e9,
              static_cast<double>(blocks.size()) / best / 1e9);
}

}  // namespace
}  // namespace switchyard::checkpoint

int main() {
  for (const auto& format : switchyard::GgufBlockFormats()) {
    if (switchyard::checkpoint::DecoderOf(format) != nullptr) switchyard::checkpoint::Measure(format);
  }
  return 0;
}
