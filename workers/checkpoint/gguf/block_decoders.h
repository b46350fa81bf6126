// The decoders of block_formats.h's table, one for each type.  Only block_formats.cc calls them.
#pragma once

#include <cstdint>
#include <cstring>

namespace switchyard::checkpoint {

using GgufDecoder = void(const uint8_t* blocks, int64_t num_blocks, float* out);

GgufDecoder DecodeF32, DecodeF16, DecodeBf16;                                    // plain_decoders.cc
GgufDecoder DecodeQ40, DecodeQ41, DecodeQ50, DecodeQ51, DecodeQ80;               // small_block_decoders.cc
GgufDecoder DecodeIq4Nl, DecodeMxfp4;                                            // small_block_decoders.cc
GgufDecoder DecodeQ2K, DecodeQ3K, DecodeQ4K, DecodeQ5K, DecodeQ6K, DecodeIq4Xs;  // super_block_decoders.cc

inline constexpr int kGgufSuperBlock = 256;  // elements of a block of the K types
// IQ4_NL and IQ4_XS: the value of a nibble, in units of the scale.
inline constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t LoadU16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, 2);
  return value;
}

// An IEEE half as a float, without branches, so that loops over it become vectors on every processor.
inline float HalfAsFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  uint32_t subnormal_bits;
  std::memcpy(&subnormal_bits, &subnormal, 4);
  const uint32_t normal_bits = (rest << 13) + (112u << 23);
  const uint32_t is_subnormal = 0u - static_cast<uint32_t>(rest < 0x400u);  // all bits, or none
  const uint32_t is_infinite = 0u - static_cast<uint32_t>(rest >= 0x7c00u);
  const uint32_t bits = (subnormal_bits & is_subnormal) | (normal_bits & ~is_subnormal) | (0x7f800000u & is_infinite);
  return FloatOfBits(sign | bits);
}

inline float LoadHalf(const uint8_t* bytes) { return HalfAsFloat(LoadU16(bytes)); }

// Scales and minima of the 8 groups of a block of Q4_K and Q5_K: 6 bits each, in 12 bytes.
struct GroupScales {
  float scale[8];
  float minimum[8];
};
GroupScales ReadGroupScales(const uint8_t* block);

}  // namespace switchyard::checkpoint
