#include "workers/checkpoint/gguf/block_formats.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/checkpoint/gguf/block_decoders.h"

namespace switchyard::checkpoint {
namespace {

// Sizes as in the gguf Python package's GGML_QUANT_SIZES.  Numbers that are missing were never written, or no longer
// are.
constexpr GgufBlockFormat kFormats[] = {
    {0, "F32", 1, 4, DecodeF32},
    {1, "F16", 1, 2, DecodeF16},
    {2, "Q4_0", 32, 2 + 16, DecodeQ40},
    {3, "Q4_1", 32, 2 + 2 + 16, DecodeQ41},
    {6, "Q5_0", 32, 2 + 4 + 16, DecodeQ50},
    {7, "Q5_1", 32, 2 + 2 + 4 + 16, DecodeQ51},
    {8, "Q8_0", 32, 2 + 32, DecodeQ80},
    {9, "Q8_1", 32, 4 + 4 + 32, nullptr},
    {10, "Q2_K", 256, 16 + 64 + 2 + 2, DecodeQ2K},
    {11, "Q3_K", 256, 32 + 64 + 12 + 2, DecodeQ3K},
    {12, "Q4_K", 256, 2 + 2 + 12 + 128, DecodeQ4K},
    {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128, DecodeQ5K},
    {14, "Q6_K", 256, 128 + 64 + 16 + 2, DecodeQ6K},
    {15, "Q8_K", 256, 4 + 256 + 32, nullptr},
    {16, "IQ2_XXS", 256, 2 + 64, nullptr},
    {17, "IQ2_XS", 256, 2 + 64 + 8, nullptr},
    {18, "IQ3_XXS", 256, 2 + 64 + 32, nullptr},
    {19, "IQ1_S", 256, 2 + 32 + 16, nullptr},
    {20, "IQ4_NL", 32, 2 + 16, DecodeIq4Nl},
    {21, "IQ3_S", 256, 2 + 64 + 32 + 8 + 4, nullptr},
    {22, "IQ2_S", 256, 2 + 64 + 16, nullptr},
    {23, "IQ4_XS", 256, 2 + 2 + 4 + 128, DecodeIq4Xs},
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 32 + 16 + 8, nullptr},
    {30, "BF16", 1, 2, DecodeBf16},
    {34, "TQ1_0", 256, 2 + 4 * 13, nullptr},
    {35, "TQ2_0", 256, 2 + 64, nullptr},
    {39, "MXFP4", 32, 1 + 16, DecodeMxfp4},
    {40, "NVFP4", 64, 4 + 32, nullptr},
    {41, "Q1_0", 128, 2 + 16, nullptr},
};

}  // namespace

absl::Span<const GgufBlockFormat> GgufBlockFormats() { return kFormats; }

const GgufBlockFormat* FindGgufBlockFormat(uint32_t type) {
  const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                         [&](const GgufBlockFormat& each) { return each.type == type; });
  return found == std::end(kFormats) ? nullptr : found;
}

std::string DecodableGgufTypes() {
  std::string names;
  for (const GgufBlockFormat& each : kFormats) {
    if (each.decode != nullptr) absl::StrAppend(&names, names.empty() ? "" : ", ", each.name);
  }
  return names;
}

void DecodeBlocks(GgufType type, const uint8_t* blocks, int64_t elements, float* out) {
  const GgufBlockFormat* const format = FindGgufBlockFormat(static_cast<uint32_t>(type));
  SY_CHECK(format != nullptr && format->decode != nullptr);
  SY_CHECK_EQ(elements % format->elements, 0);
  format->decode(blocks, elements / format->elements, out);
}

}  // namespace switchyard::checkpoint
