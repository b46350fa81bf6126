#include "workers/checkpoint/gguf/block_formats.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/checkpoint/gguf/block_decoders.h"

namespace switchyard::checkpoint {
namespace {

struct Decoder {
  GgufType type;
  DecodeBlocksFn decode;
};
constexpr Decoder kDecoders[] = {
    {GgufType::kF32, DecodeF32},      {GgufType::kF16, DecodeF16},      {GgufType::kQ4_0, DecodeQ40},
    {GgufType::kQ4_1, DecodeQ41},     {GgufType::kQ5_0, DecodeQ50},     {GgufType::kQ5_1, DecodeQ51},
    {GgufType::kQ8_0, DecodeQ80},     {GgufType::kQ2_K, DecodeQ2K},     {GgufType::kQ3_K, DecodeQ3K},
    {GgufType::kQ4_K, DecodeQ4K},     {GgufType::kQ5_K, DecodeQ5K},     {GgufType::kQ6_K, DecodeQ6K},
    {GgufType::kIQ4_NL, DecodeIq4Nl}, {GgufType::kIQ4_XS, DecodeIq4Xs}, {GgufType::kBF16, DecodeBf16},
    {GgufType::kMXFP4, DecodeMxfp4},
};

}  // namespace

DecodeBlocksFn DecoderOf(const GgufBlockFormat& format) {
  for (const Decoder& each : kDecoders) {
    if (static_cast<uint32_t>(each.type) == format.type) return each.decode;
  }
  return nullptr;
}

std::string DecodableGgufTypes() {
  std::string names;
  for (const GgufBlockFormat& each : GgufBlockFormats()) {
    if (DecoderOf(each) != nullptr) absl::StrAppend(&names, names.empty() ? "" : ", ", each.name);
  }
  return names;
}

void DecodeBlocks(GgufType type, const uint8_t* blocks, int64_t elements, float* out) {
  const GgufBlockFormat* const format = FindGgufBlockFormat(static_cast<uint32_t>(type));
  SY_CHECK(format != nullptr && DecoderOf(*format) != nullptr);
  SY_CHECK_EQ(elements % format->elements, 0);
  DecoderOf (*format)(blocks, elements / format->elements, out);
}

}  // namespace switchyard::checkpoint
