// Types with blocks of 32 elements: a scale (and a minimum) for each.  A byte of `quants` has element i in its low and
// element i + 16 in its high nibble.
#include "workers/checkpoint/gguf/block_decoders.h"

namespace switchyard::checkpoint {
namespace {

constexpr int kElements = 32;
constexpr int kHalf = kElements / 2;

uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, 4);
  return value;
}

// The scale of an MXFP4 block, halved, as kMxfp4Values are doubled: 2^(exponent - 128).
float HalvedScale(uint8_t exponent) {
  return FloatOfBits(exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23);
}
constexpr float kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Blocks of a scale and 16 bytes of nibbles that index `values`.
void DecodeByTable(const uint8_t* __restrict__ quants, float scale, const float* values, float* __restrict__ out) {
  for (int i = 0; i < kHalf; ++i) {
    out[i] = scale * values[quants[i] & 15];
    out[i + kHalf] = scale * values[quants[i] >> 4];
  }
}

}  // namespace

void DecodeQ40(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 16, out += kElements) {
    const float scale = LoadHalf(blocks);
    const uint8_t* const quants = blocks + 2;
    for (int i = 0; i < kHalf; ++i) out[i] = scale * static_cast<float>((quants[i] & 15) - 8);
    for (int i = 0; i < kHalf; ++i) out[i + kHalf] = scale * static_cast<float>((quants[i] >> 4) - 8);
  }
}

void DecodeQ41(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 16, out += kElements) {
    const float scale = LoadHalf(blocks);
    const float minimum = LoadHalf(blocks + 2);
    const uint8_t* const quants = blocks + 4;
    for (int i = 0; i < kHalf; ++i) out[i] = scale * static_cast<float>(quants[i] & 15) + minimum;
    for (int i = 0; i < kHalf; ++i) out[i + kHalf] = scale * static_cast<float>(quants[i] >> 4) + minimum;
  }
}

void DecodeQ50(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 4 + 16, out += kElements) {
    const float scale = LoadHalf(blocks);
    const uint32_t fifth = LoadU32(blocks + 2);  // bit i is element i's
    const uint8_t* const quants = blocks + 6;
    for (int i = 0; i < kHalf; ++i) {
      const int low = (quants[i] & 15) | static_cast<int>((fifth >> i) & 1) << 4;
      const int high = (quants[i] >> 4) | static_cast<int>((fifth >> (i + kHalf)) & 1) << 4;
      out[i] = scale * static_cast<float>(low - 16);
      out[i + kHalf] = scale * static_cast<float>(high - 16);
    }
  }
}

void DecodeQ51(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 4 + 16, out += kElements) {
    const float scale = LoadHalf(blocks);
    const float minimum = LoadHalf(blocks + 2);
    const uint32_t fifth = LoadU32(blocks + 4);
    const uint8_t* const quants = blocks + 8;
    for (int i = 0; i < kHalf; ++i) {
      const int low = (quants[i] & 15) | static_cast<int>((fifth >> i) & 1) << 4;
      const int high = (quants[i] >> 4) | static_cast<int>((fifth >> (i + kHalf)) & 1) << 4;
      out[i] = scale * static_cast<float>(low) + minimum;
      out[i + kHalf] = scale * static_cast<float>(high) + minimum;
    }
  }
}

void DecodeQ80(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 32, out += kElements) {
    const float scale = LoadHalf(blocks);
    const auto* const quants = reinterpret_cast<const int8_t*>(blocks + 2);
    for (int i = 0; i < kElements; ++i) out[i] = static_cast<float>(quants[i]) * scale;
  }
}

void DecodeIq4Nl(const uint8_t* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 16, out += kElements) {
    DecodeByTable(blocks + 2, LoadHalf(blocks), kIq4Values, out);
  }
}

void DecodeMxfp4(const uint8_t* blocks, int64_t num_blocks, float* out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 1 + 16, out += kElements) {
    DecodeByTable(blocks + 1, HalvedScale(blocks[0]), kMxfp4Values, out);
  }
}

}  // namespace switchyard::checkpoint
