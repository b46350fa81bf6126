// What the blocks of GGUF's types (scheduler/base/gguf/gguf_types.h) mean: the decoders of those that we load as
// weights.
//
// Decoded values have the bits that the gguf Python package (gguf.quants.dequantize) computes, which are llama.cpp's.
// Thread-safe (pure).  Does not do: encoding.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/base/gguf/gguf_types.h"

namespace switchyard::checkpoint {

// The types that we load, with the numbers that files write.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// Writes num_blocks blocks' elements.
using DecodeBlocksFn = void (*)(const uint8_t* blocks, int64_t num_blocks, float* out);
// Null for a type that cannot be loaded.
DecodeBlocksFn DecoderOf(const GgufBlockFormat& format);
// "F32, F16, Q4_0 …": the names of the types that have a decoder, for error messages.
std::string DecodableGgufTypes();

// Decodes `elements` values.  REQUIRES: elements is a multiple of the type's block; `blocks` has their bytes.
void DecodeBlocks(GgufType type, const uint8_t* blocks, int64_t elements, float* out);

}  // namespace switchyard::checkpoint
