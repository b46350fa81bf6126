#include "workers/checkpoint/quantized/decode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "scheduler/base/check.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

// The output whose code is the n-th of a word of AWQ.
constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float ComputeE4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

const std::array<float, 256>& E4m3Values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (int code = 0; code < 256; ++code) all[code] = ComputeE4m3(static_cast<uint8_t>(code));
    return all;
  }();
  return values;
}

// Two codes in a byte, the lower four bits first.
template <class Fn>
void DecodeHalves(absl::Span<const uint8_t> bytes, absl::Span<float> to, Fn value) {
  const size_t pairs = to.size() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    to[2 * i] = value(bytes[i] & 15);
    to[2 * i + 1] = value(bytes[i] >> 4);
  }
  if (to.size() % 2 != 0) to.back() = value(bytes[pairs] & 15);
}

}  // namespace

int CodeBits(CodeType type) { return type == CodeType::kUint4 || type == CodeType::kE2m1 ? 4 : 8; }

float DecodeE4m3(uint8_t code) { return E4m3Values()[code]; }

float DecodeE8m0(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

const std::array<uint16_t, 256>& HalfPowers() {
  static const std::array<uint16_t, 256> halves = [] {
    std::array<uint16_t, 256> bits{};
    for (size_t code = 0; code < bits.size(); ++code)
      bits[code] = Bf16(0.5F * DecodeE8m0(static_cast<uint8_t>(code))).bits;
    return bits;
  }();
  return halves;
}

void DecodeCodes(CodeType type, absl::Span<const uint8_t> bytes, absl::Span<float> to) {
  const auto count = static_cast<int64_t>(to.size());
  SY_CHECK_GE(static_cast<int64_t>(bytes.size()) * 8, count * CodeBits(type));
  switch (type) {
    case CodeType::kE4m3: {
      const std::array<float, 256>& values = E4m3Values();
      for (int64_t i = 0; i < count; ++i) to[i] = values[bytes[i]];
      return;
    }
    case CodeType::kInt8:
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<int8_t>(bytes[i]));
      return;
    case CodeType::kUint8:
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(bytes[i]);
      return;
    case CodeType::kUint4:
      return DecodeHalves(bytes, to, [](int code) { return static_cast<float>(code); });
    case CodeType::kE2m1:
      return DecodeHalves(bytes, to, [](int code) { return kE2m1Values[code]; });
  }
}

void ApplyGroups(const RowGroups& groups, absl::Span<float> row) {
  const auto columns = static_cast<int64_t>(row.size());
  if (!groups.order.empty()) {
    for (int64_t c = 0; c < columns; ++c) {
      const int32_t group = groups.order[c];
      row[c] = (row[c] - (groups.zeros.empty() ? 0.0f : groups.zeros[group])) * groups.scales[group];
    }
    return;
  }
  for (int64_t begin = 0, group = 0; begin < columns; begin += groups.size, ++group) {
    const int64_t end = std::min(begin + groups.size, columns);
    const float scale = groups.scales[group];
    const float zero = groups.zeros.empty() ? 0.0f : groups.zeros[group];
    for (int64_t c = begin; c < end; ++c) row[c] = (row[c] - zero) * scale;
  }
}

void TransposeGptq(const uint32_t* words, int bits, int64_t outputs, int64_t columns, uint8_t* codes) {
  const int factor = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t w = 0; w < columns / factor; ++w) {
    for (int64_t n = 0; n < outputs; ++n) {
      const uint32_t word = words[w * outputs + n];
      uint8_t* const to = codes + n * columns + w * factor;
      for (int i = 0; i < factor; ++i) to[i] = static_cast<uint8_t>((word >> (i * bits)) & mask);
    }
  }
}

void TransposeAwq(const uint32_t* words, int64_t outputs, int64_t columns, uint8_t* codes) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t w = 0; w < outputs / 8; ++w) {
      const uint32_t word = words[c * (outputs / 8) + w];
      for (int i = 0; i < 8; ++i) {
        codes[(w * 8 + kAwqOrder[i]) * columns + c] = static_cast<uint8_t>((word >> (4 * i)) & 15);
      }
    }
  }
}

}  // namespace switchyard::checkpoint
