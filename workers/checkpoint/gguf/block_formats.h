// How GGUF stores a tensor's elements: blocks of a fixed number of elements in a fixed number of bytes, which share
// scales.  A table of all types that llama.cpp writes, and the decoders of those that we load as weights.
//
// Decoded values have the bits that the gguf Python package (gguf.quants.dequantize) computes, which are llama.cpp's.
// Thread-safe (pure).  Does not do: encoding, decoding of types whose `decode` is null (their sizes are known, so that
// a file that holds some can be opened).
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"

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

struct GgufBlockFormat {
  uint32_t type;     // the number in a file; a GgufType where `decode` is not null
  const char* name;  // llama.cpp's: "Q4_K"
  int32_t elements;  // of a block
  int32_t bytes;     // of a block
  // Writes num_blocks * elements values.  Null: the type is known, but its tensors cannot be loaded.
  void (*decode)(const uint8_t* blocks, int64_t num_blocks, float* out);
};

// All known types, by rising number.
absl::Span<const GgufBlockFormat> GgufBlockFormats();
// nullptr for a number that no type has.
const GgufBlockFormat* FindGgufBlockFormat(uint32_t type);
// "F32, F16, Q4_0 …": the names of the types that have a decoder, for error messages.
std::string DecodableGgufTypes();

// Decodes `elements` values.  REQUIRES: elements is a multiple of the type's block; `blocks` has their bytes.
void DecodeBlocks(GgufType type, const uint8_t* blocks, int64_t elements, float* out);

}  // namespace switchyard::checkpoint
