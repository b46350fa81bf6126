// Types with blocks of 256 elements, in 8 or 16 groups with small scales of their own, which one half scales.
#include "workers/checkpoint/gguf/block_decoders.h"

namespace switchyard::checkpoint {
GroupScales ReadGroupScales(const uint8_t* block) {
  const float scale = LoadHalf(block);
  const float minimum = LoadHalf(block + 2);
  const uint8_t* const packed = block + 4;
  GroupScales groups;
  for (int g = 0; g < 4; ++g) {
    groups.scale[g] = scale * static_cast<float>(packed[g] & 63);
    groups.minimum[g] = minimum * static_cast<float>(packed[g + 4] & 63);
    const int high_scale = (packed[g + 8] & 15) | ((packed[g] >> 2) & 0x30);
    const int high_minimum = (packed[g + 8] >> 4) | ((packed[g + 4] >> 2) & 0x30);
    groups.scale[g + 4] = scale * static_cast<float>(high_scale);
    groups.minimum[g + 4] = minimum * static_cast<float>(high_minimum);
  }
  return groups;
}

namespace {

// The 16 scales of a block of Q3_K, from 12 bytes: 4 bits of each in the first 8, 2 bits in the last 4.
void ReadQ3Scales(const uint8_t* packed, float scale, float* scales) {
  for (int g = 0; g < 16; ++g) {
    const int low = (packed[g % 8] >> (4 * (g / 8))) & 15;
    const int high = (packed[8 + g % 4] >> (2 * (g / 4))) & 3;
    scales[g] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

}  // namespace

void DecodeQ2K(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 16 + 64 + 2 + 2) {
    const uint8_t* const quants = blocks + 16;
    const float scale = LoadHalf(blocks + 80);
    const float minimum = LoadHalf(blocks + 82);
    for (int g = 0; g < 16; ++g, out += 16) {  // group g: bits 2 * (g / 2 % 4) of 16 bytes of its half's 32
      const float group_scale = scale * static_cast<float>(blocks[g] & 15);
      const float group_minimum = minimum * static_cast<float>(blocks[g] >> 4);
      const uint8_t* const bytes = quants + 32 * (g / 8) + 16 * (g % 2);
      const int shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) out[i] = group_scale * static_cast<float>((bytes[i] >> shift) & 3) - group_minimum;
    }
  }
}

void DecodeQ3K(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 32 + 64 + 12 + 2) {
    const uint8_t* const third = blocks;  // bit e / 32 of byte e % 32 is element e's; it means 0, and its absence -4
    const uint8_t* const quants = blocks + 32;
    float scales[16];
    ReadQ3Scales(blocks + 96, LoadHalf(blocks + 108), scales);
    for (int g = 0; g < 16; ++g, out += 16) {
      const uint8_t* const bytes = quants + 32 * (g / 8) + 16 * (g % 2);
      const uint8_t* const bits = third + 16 * (g % 2);
      const int shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) {
        const int quant = ((bytes[i] >> shift) & 3) + 4 * ((bits[i] >> (g / 2)) & 1) - 4;
        out[i] = scales[g] * static_cast<float>(quant);
      }
    }
  }
}

void DecodeQ4K(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 12 + 128) {
    const GroupScales groups = ReadGroupScales(blocks);
    const uint8_t* quants = blocks + 16;
    for (int g = 0; g < 8; g += 2, quants += 32, out += 64) {
      for (int i = 0; i < 32; ++i) {
        out[i] = groups.scale[g] * static_cast<float>(quants[i] & 15) - groups.minimum[g];
      }
      for (int i = 0; i < 32; ++i) {
        out[i + 32] = groups.scale[g + 1] * static_cast<float>(quants[i] >> 4) - groups.minimum[g + 1];
      }
    }
  }
}

void DecodeQ5K(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 12 + 32 + 128) {
    const GroupScales groups = ReadGroupScales(blocks);
    const uint8_t* const fifth = blocks + 16;  // bit g of byte i is that of element i of group g
    const uint8_t* quants = blocks + 48;
    for (int g = 0; g < 8; g += 2, quants += 32, out += 64) {
      for (int i = 0; i < 32; ++i) {
        const int quant = (quants[i] & 15) | ((fifth[i] >> g) & 1) << 4;
        out[i] = groups.scale[g] * static_cast<float>(quant) - groups.minimum[g];
      }
      for (int i = 0; i < 32; ++i) {
        const int quant = (quants[i] >> 4) | ((fifth[i] >> (g + 1)) & 1) << 4;
        out[i + 32] = groups.scale[g + 1] * static_cast<float>(quant) - groups.minimum[g + 1];
      }
    }
  }
}

void DecodeQ6K(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 128 + 64 + 16 + 2) {
    const auto* const packed_scales = reinterpret_cast<const int8_t*>(blocks + 192);
    const float scale = LoadHalf(blocks + 208);
    for (int g = 0; g < 16; ++g, out += 16) {  // group g has elements 16 * (g % 8) … of half g / 8
      const int in_half = 16 * (g % 8);
      const uint8_t* const low = blocks + 64 * (g / 8) + in_half % 64;
      const uint8_t* const high = blocks + 128 + 32 * (g / 8) + in_half % 32;
      const int low_shift = 4 * (in_half / 64);
      const int high_shift = 2 * (in_half / 32);
      const float group_scale = scale * static_cast<float>(packed_scales[g]);
      for (int i = 0; i < 16; ++i) {
        const int quant = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
        out[i] = group_scale * static_cast<float>(quant - 32);
      }
    }
  }
}

void DecodeIq4Xs(const uint8_t* __restrict__ blocks, int64_t num_blocks, float* __restrict__ out) {
  for (int64_t b = 0; b < num_blocks; ++b, blocks += 2 + 2 + 4 + 128) {
    const float scale = LoadHalf(blocks);
    const int high_bits = LoadU16(blocks + 2);
    const uint8_t* quants = blocks + 8;
    for (int g = 0; g < 8; ++g, quants += 16, out += 32) {
      const int low = (blocks[4 + g / 2] >> (4 * (g % 2))) & 15;
      const int high = (high_bits >> (2 * g)) & 3;
      const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
      for (int i = 0; i < 16; ++i) {
        out[i] = group_scale * kIq4Values[quants[i] & 15];
        out[i + 16] = group_scale * kIq4Values[quants[i] >> 4];
      }
    }
  }
}

}  // namespace switchyard::checkpoint
