#include "scheduler/base/gguf/gguf_types.h"

#include <algorithm>
#include <iterator>

namespace switchyard {
namespace {

// Sizes as in the gguf Python package's GGML_QUANT_SIZES.  Numbers that are missing were never written, or no longer
// are.
constexpr GgufBlockFormat kFormats[] = {
    {0, "F32", 1, 4},
    {1, "F16", 1, 2},
    {2, "Q4_0", 32, 2 + 16},
    {3, "Q4_1", 32, 2 + 2 + 16},
    {6, "Q5_0", 32, 2 + 4 + 16},
    {7, "Q5_1", 32, 2 + 2 + 4 + 16},
    {8, "Q8_0", 32, 2 + 32},
    {9, "Q8_1", 32, 4 + 4 + 32},
    {10, "Q2_K", 256, 16 + 64 + 2 + 2},
    {11, "Q3_K", 256, 32 + 64 + 12 + 2},
    {12, "Q4_K", 256, 2 + 2 + 12 + 128},
    {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {14, "Q6_K", 256, 128 + 64 + 16 + 2},
    {15, "Q8_K", 256, 4 + 256 + 32},
    {16, "IQ2_XXS", 256, 2 + 64},
    {17, "IQ2_XS", 256, 2 + 64 + 8},
    {18, "IQ3_XXS", 256, 2 + 64 + 32},
    {19, "IQ1_S", 256, 2 + 32 + 16},
    {20, "IQ4_NL", 32, 2 + 16},
    {21, "IQ3_S", 256, 2 + 64 + 32 + 8 + 4},
    {22, "IQ2_S", 256, 2 + 64 + 16},
    {23, "IQ4_XS", 256, 2 + 2 + 4 + 128},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 32 + 16 + 8},
    {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 2 + 4 * 13},
    {35, "TQ2_0", 256, 2 + 64},
    {39, "MXFP4", 32, 1 + 16},
    {40, "NVFP4", 64, 4 + 32},
    {41, "Q1_0", 128, 2 + 16},
};

}  // namespace

absl::Span<const GgufBlockFormat> GgufBlockFormats() { return kFormats; }

const GgufBlockFormat* FindGgufBlockFormat(uint32_t type) {
  const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                         [&](const GgufBlockFormat& each) { return each.type == type; });
  return found == std::end(kFormats) ? nullptr : found;
}

const GgufBlockFormat* FindGgufBlockFormat(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                         [&](const GgufBlockFormat& each) { return each.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace switchyard
