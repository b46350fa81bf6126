#include "workers/checkpoint/gguf/block_numbers.h"

#include <cstring>

#include "workers/checkpoint/gguf/block_decoders.h"
#include "workers/checkpoint/quantized/decode.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

constexpr int kGroup = static_cast<int>(ops::kQuantGroup);

// 32 numbers of 4 bits: the lower halves of the bytes are the first 16.
void SplitHalves(const uint8_t* bytes, uint8_t* numbers) {
  for (int i = 0; i < kGroup / 2; ++i) numbers[i] = bytes[i] & 15;
  for (int i = 0; i < kGroup / 2; ++i) numbers[i + kGroup / 2] = bytes[i] >> 4;
}

void ReadQ80(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 32) {
    std::memcpy(to.scales + b, blocks, 2);
    for (int i = 0; i < kGroup; ++i) to.numbers[b * kGroup + i] = blocks[2 + i] ^ 0x80;
  }
}

void ReadQ40(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 16) {
    std::memcpy(to.scales + b, blocks, 2);
    SplitHalves(blocks + 2, to.numbers + b * kGroup);
  }
}

void ReadQ41(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 16) {
    std::memcpy(to.scales + b, blocks, 2);
    std::memcpy(to.least + b, blocks + 2, 2);
    SplitHalves(blocks + 4, to.numbers + b * kGroup);
  }
}

void ReadQ4K(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  uint8_t* numbers = to.numbers;
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 12 + 128) {
    const GroupScales groups = ReadGroupScales(blocks);
    for (int g = 0; g < 8; ++g) {
      to.scales[b * 8 + g] = Fp16(groups.scale[g]).bits;
      to.least[b * 8 + g] = Fp16(-groups.minimum[g]).bits;
    }
    const uint8_t* quants = blocks + 16;
    for (int g = 0; g < 8; g += 2, quants += kGroup, numbers += 2 * kGroup) {
      for (int i = 0; i < kGroup; ++i) numbers[i] = quants[i] & 15;
      for (int i = 0; i < kGroup; ++i) numbers[i + kGroup] = quants[i] >> 4;
    }
  }
}

void ReadQ6K(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 128 + 64 + 16 + 2) {
    const float scale = LoadHalf(blocks + 208);
    for (int g = 0; g < 16; ++g) {  // group g has numbers 16 * (g % 8) … of half g / 8
      to.scales[b * 16 + g] = Fp16(scale * static_cast<float>(static_cast<int8_t>(blocks[192 + g]))).bits;
      const int in_half = 16 * (g % 8);
      const uint8_t* const lower = blocks + 64 * (g / 8) + in_half % 64;
      const uint8_t* const upper = blocks + 128 + 32 * (g / 8) + in_half % 32;
      uint8_t* const numbers = to.numbers + (b * 16 + g) * 16;
      for (int i = 0; i < 16; ++i) {
        const int high = upper[i] >> (2 * (in_half / 32)) & 3;
        numbers[i] = static_cast<uint8_t>((lower[i] >> (4 * (in_half / 64)) & 15) | high << 4);
      }
    }
  }
}

void ReadMxfp4(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  const std::array<uint16_t, 256>& halves = HalfPowers();
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 1 + 16) {
    to.scales[b] = halves[blocks[0]];
    SplitHalves(blocks + 1, to.numbers + b * kGroup);
  }
}

}  // namespace

BlockNumbers NumbersOfType(absl::string_view type) {
  if (type == "Q8_0") return {ops::WeightFormat::kQ8_0, ReadQ80};
  if (type == "Q4_0") return {ops::WeightFormat::kQ4_0, ReadQ40};
  if (type == "Q4_1") return {ops::WeightFormat::kQ4_1, ReadQ41};
  if (type == "Q4_K") return {ops::WeightFormat::kQ4_1, ReadQ4K};
  if (type == "Q6_K") return {ops::WeightFormat::kQ6_K, ReadQ6K};
  if (type == "MXFP4") return {ops::WeightFormat::kMxfp4, ReadMxfp4};
  return {};
}

}  // namespace switchyard::checkpoint
