#include "workers/ops/gemm/quantized/quantize_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

const char* WeightFormatName(WeightFormat format) {
  constexpr const char* kNames[] = {"plain", "int8", "int4"};
  return kNames[static_cast<int>(format)];
}

std::optional<WeightFormat> FindWeightFormat(absl::string_view name) {
  for (const WeightFormat format : {WeightFormat::kPlain, WeightFormat::kInt8, WeightFormat::kInt4}) {
    if (name == WeightFormatName(format)) return format;
  }
  return std::nullopt;
}

std::string ToString(const WeightType& type) {
  if (type.format == WeightFormat::kPlain) return DTypeName(type.dtype);
  return absl::StrCat(WeightFormatName(type.format), " (", DTypeName(type.dtype), ")");
}

namespace {

constexpr int64_t kScaleBytes = 64;
constexpr int kGroupSize = static_cast<int>(kQuantGroup);

// Where a column's number for k of the group is, and how far its bits are shifted.
struct Place {
  int64_t byte;
  int shift;
};
Place PlaceOf(WeightFormat format, int64_t column, int k) {
  if (format == WeightFormat::kInt8) return {kScaleBytes + (k / 4 * 32 + column) * 4 + k % 4, 0};
  return {kScaleBytes + ((k / 8 * 4 + column / 8) * 8 + column % 8) * 4 + k % 4, k % 8 / 4 * 4};
}

uint32_t Get(WeightFormat format, const char* block, int64_t column, int k) {
  const Place place = PlaceOf(format, column, k);
  const uint32_t byte = static_cast<uint8_t>(block[place.byte]);
  return format == WeightFormat::kInt8 ? byte : byte >> place.shift & 15u;
}

void Put(WeightFormat format, char* block, int64_t column, int k, uint32_t number) {
  const Place place = PlaceOf(format, column, k);
  uint32_t byte = number;
  if (format == WeightFormat::kInt4) {
    const uint32_t others = static_cast<uint8_t>(block[place.byte]) & (15u << (4 - place.shift));
    byte = others | number << place.shift;
  }
  block[place.byte] = static_cast<char>(byte);
}

// The scales that are tried: the whole range, and for 4 bits narrower ones, whose ends are clamped, and those that use
// the one number more below zero.
float BestScale(WeightFormat format, const float* x) {
  float low = 0, high = 0;
  for (int k = 0; k < kGroupSize; ++k) low = std::min(low, x[k]), high = std::max(high, x[k]);
  const float largest = std::max(-low, high);
  if (largest == 0) return 0;
  if (format == WeightFormat::kInt8) return static_cast<float>(Bf16(largest / 127));
  float best = 0;
  float least = std::numeric_limits<float>::infinity();
  constexpr int kSteps = 9;
  for (int step = 0; step < 2 * kSteps; ++step) {
    // The end with the larger magnitude is at 8 or 7 …: a negative scale turns the range round.
    const float sign = step % 2 == 0 ? 1.0F : -1.0F;
    const float scale = static_cast<float>(Bf16(sign * largest / (8.5F - 0.25F * static_cast<float>(step / 2))));
    const float inverse = 1 / scale;
    float error = 0;
    for (int k = 0; k < kGroupSize; ++k) {
      const float q = std::min(std::max(std::nearbyint(x[k] * inverse), -8.0F), 7.0F);
      const float d = x[k] - q * scale;
      error += d * d;
    }
    if (error < least) least = error, best = scale;
  }
  return best;
}

void QuantizeGroup(WeightFormat format, const float* x, int64_t column, char* block) {
  const float scale = BestScale(format, x);
  const Bf16 stored(scale);
  std::memcpy(block + column * 2, &stored.bits, 2);
  const int32_t zero = WeightZero(format);
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int k = 0; k < kGroupSize; ++k) {
    const float limit = static_cast<float>(zero);
    const auto q = static_cast<int32_t>(std::min(std::max(std::nearbyint(x[k] * inverse), -limit), limit - 1));
    Put(format, block, column, k, static_cast<uint32_t>(q + zero));
  }
}

}  // namespace

void QuantizeColumn(WeightFormat format, const float* from, int64_t k, int64_t column, char* panel) {
  for (int64_t begin = 0; begin < k; begin += kQuantGroup, panel += QuantBlockBytes(format)) {
    if (begin + kQuantGroup <= k) {
      QuantizeGroup(format, from + begin, column, panel);
    } else {
      float padded[kQuantGroup] = {};
      std::copy(from + begin, from + k, padded);
      QuantizeGroup(format, padded, column, panel);
    }
  }
}

void DequantizeColumn(WeightFormat format, const char* panel, int64_t column, int64_t k, float* to) {
  for (int64_t begin = 0; begin < k; begin += kQuantGroup, panel += QuantBlockBytes(format)) {
    Bf16 stored;
    std::memcpy(&stored.bits, panel + column * 2, 2);
    const float scale = static_cast<float>(stored);
    for (int64_t i = begin; i < std::min(begin + kQuantGroup, k); ++i) {
      const auto q = static_cast<int32_t>(Get(format, panel, column, static_cast<int>(i - begin)));
      to[i] = static_cast<float>(q - WeightZero(format)) * scale;
    }
  }
}

}  // namespace switchyard::ops
