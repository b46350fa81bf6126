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

void ReadMxfp4(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 1 + 16) {
    to.scales[b] = Bf16(0.5F * DecodeE8m0(blocks[0])).bits;
    SplitHalves(blocks + 1, to.numbers + b * kGroup);
  }
}

}  // namespace

BlockNumbers NumbersOfType(absl::string_view type) {
  if (type == "Q8_0") return {ops::WeightFormat::kQ8_0, ReadQ80};
  if (type == "Q4_0") return {ops::WeightFormat::kQ4_0, ReadQ40};
  if (type == "Q4_1") return {ops::WeightFormat::kQ4_1, ReadQ41};
  if (type == "Q4_K") return {ops::WeightFormat::kQ4_1, ReadQ4K};
  if (type == "MXFP4") return {ops::WeightFormat::kMxfp4, ReadMxfp4};
  return {};
}

}  // namespace switchyard::checkpoint
