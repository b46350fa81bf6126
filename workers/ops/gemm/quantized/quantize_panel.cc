#include "workers/ops/gemm/quantized/quantize_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

const char* WeightFormatName(WeightFormat format) {
  constexpr const char* kNames[] = {"plain", "int8", "int4", "q8_0", "q4_0", "q4_1", "mxfp4", "q6_k"};
  return kNames[static_cast<int>(format)];
}

std::optional<WeightFormat> FindWeightFormat(absl::string_view name) {
  for (const WeightFormat format :
       {WeightFormat::kPlain, WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
        WeightFormat::kQ4_1, WeightFormat::kMxfp4, WeightFormat::kQ6_K}) {
    if (name == WeightFormatName(format)) return format;
  }
  return std::nullopt;
}

std::string ToString(const WeightFormats& formats) {
  std::set<WeightFormat> dense, experts;
  for (size_t i = 0; i < std::max<size_t>(formats.layers.size(), 1); ++i) {
    const LayerFormats& layer = formats.of(i);
    dense.insert({layer.qkv, layer.o, layer.dense_gate_up, layer.dense_down});
    experts.insert({layer.gate_up, layer.down});
  }
  const auto names = [](const std::set<WeightFormat>& of) {
    return absl::StrJoin(of, " and ", [](std::string* to, WeightFormat each) { *to += WeightFormatName(each); });
  };
  return experts == dense ? names(dense) : absl::StrCat(names(dense), ", experts ", names(experts));
}

std::string ToString(const WeightType& type) {
  if (type.format == WeightFormats()) return DTypeName(type.dtype);
  return absl::StrCat(ToString(type.format), " (", DTypeName(type.dtype), ")");
}

namespace {

constexpr int64_t kLeastOffset = 64;  // of the least values, or the second scales, in a block
constexpr int64_t NumbersOffset(WeightFormat format) {
  return QuantBlockBytes(format) - kQuantGroup * 32 * WeightBits(format) / 8;
}
constexpr int kGroupSize = static_cast<int>(kQuantGroup);
constexpr float kLeastMagnitude = 1e-30F;  // smaller groups are zeros: 1 / scale must be a number

// Where a column's number for k of the group is, and how far its bits are shifted.
struct Place {
  int64_t byte;
  int shift;
};
Place PlaceOf(WeightFormat format, int64_t column, int k) {
  if (WeightBits(format) == 8) return {NumbersOffset(format) + (k / 4 * 32 + column) * 4 + k % 4, 0};
  return {NumbersOffset(format) + (k / 8 * 32 + column) * 4 + k % 4, k % 8 / 4 * 4};
}

// Of the upper 2 of 6 bits.
Place UpperPlaceOf(WeightFormat format, int64_t column, int k) {
  return {NumbersOffset(format) + kUpperBitsOffset + (k / 16 * 32 + column) * 4 + k % 4, k % 16 / 4 * 2};
}

uint32_t GetAt(const char* block, Place place, uint32_t mask) {
  return static_cast<uint8_t>(block[place.byte]) >> place.shift & mask;
}
void PutAt(char* block, Place place, uint32_t mask, uint32_t number) {
  const uint32_t others = static_cast<uint8_t>(block[place.byte]) & ~(mask << place.shift);
  block[place.byte] = static_cast<char>(others | number << place.shift);
}

uint32_t Get(WeightFormat format, const char* block, int64_t column, int k) {
  const uint32_t number = GetAt(block, PlaceOf(format, column, k), WeightBits(format) == 8 ? 255 : 15);
  return WeightBits(format) == 6 ? number | GetAt(block, UpperPlaceOf(format, column, k), 3) << 4 : number;
}

void Put(WeightFormat format, char* block, int64_t column, int k, uint32_t number) {
  const uint32_t mask = WeightBits(format) == 8 ? 255 : 15;
  PutAt(block, PlaceOf(format, column, k), mask, number & mask);
  if (WeightBits(format) == 6) PutAt(block, UpperPlaceOf(format, column, k), 3, number >> 4);
}

// All of a group's numbers, a word of the block at a time.
template <WeightFormat kFormat>
void StoreGroup(const uint8_t* numbers, int64_t column, char* block) {
  constexpr int kNext = 32 * 4;  // a column's next word, where PlaceOf has it
  char* word_at = block + NumbersOffset(kFormat) + column * 4;
  if constexpr (WeightBits(kFormat) == 8) {
    for (int k = 0; k < kGroupSize; k += 4, word_at += kNext) std::memcpy(word_at, numbers + k, 4);
    return;
  }
  for (int k = 0; k < kGroupSize; k += 8, word_at += kNext) {
    uint64_t eight;
    std::memcpy(&eight, numbers + k, sizeof(eight));
    eight &= 0x0f0f0f0f0f0f0f0f;
    const auto word = static_cast<uint32_t>(eight | eight >> 32 << 4);
    std::memcpy(word_at, &word, sizeof(word));
  }
  if constexpr (WeightBits(kFormat) != 6) return;
  char* upper_at = block + NumbersOffset(kFormat) + kUpperBitsOffset + column * 4;
  for (int half = 0; half < kGroupSize; half += 16, upper_at += kNext) {
    uint32_t upper = 0;
    for (int quad = 0; quad < 4; ++quad) {
      uint32_t four;
      std::memcpy(&four, numbers + half + 4 * quad, sizeof(four));
      upper |= (four >> 4 & 0x03030303u) << (2 * quad);
    }
    std::memcpy(upper_at, &upper, sizeof(upper));
  }
}

template <WeightFormat kFormat>
void StoreColumnsAs(const StoredNumbers& rows, int64_t count, int64_t k, int64_t column, char* panel) {
  constexpr int64_t kScales = kQuantGroup / ScaleGroup(kFormat);  // of a group
  const int64_t groups = k / kQuantGroup;
  for (int64_t group = 0; group < groups; ++group, panel += QuantBlockBytes(kFormat)) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = i * rows.stride;
      const uint16_t* const scales = rows.scales + (row * groups + group) * kScales;
      std::memcpy(panel + (column + i) * 2, scales, 2);
      if (kScales > 1) std::memcpy(panel + kLeastOffset + (column + i) * 2, scales + 1, 2);
      if (HasLeast(kFormat)) std::memcpy(panel + kLeastOffset + (column + i) * 2, rows.least + row * groups + group, 2);
      StoreGroup<kFormat>(rows.numbers + row * k + group * kQuantGroup, column + i, panel);
    }
  }
}

// Four numbers at a time, as every x86-64 has them.
typedef float Quad __attribute__((vector_size(16)));
constexpr int kQuads = kGroupSize / 4;

Quad QuadAt(const float* x, int i) {
  Quad quad;
  std::memcpy(&quad, x + 4 * i, sizeof(quad));
  return quad;
}
Quad Within(Quad x, float low, float high) {
  const Quad least = low - Quad{}, most = high - Quad{};
  x = x < least ? least : x;
  return x > most ? most : x;
}
// To nearest even.  REQUIRES: |x| < 2^22.
Quad RoundToWhole(Quad x) {
  const Quad large = 12582912.0F - Quad{};  // 1.5 * 2^23
  return (x + large) - large;
}
// Numbers, without the zero, of a group of this scale.
Quad NumbersOf(Quad x, float inverse, float zero) { return RoundToWhole(Within(x * inverse, -zero, zero - 1)); }

float ErrorOf(const float* x, float scale) {
  Quad error = {};
  for (int i = 0; i < kQuads; ++i) {
    const Quad value = QuadAt(x, i), d = value - NumbersOf(value, 1 / scale, 8) * scale;
    error += d * d;
  }
  return (error[0] + error[1]) + (error[2] + error[3]);
}

// A scale's stored bits, and back.
uint16_t ScaleBits(WeightFormat format, float scale) {
  return HalfScales(format) ? Fp16(scale).bits : Bf16(scale).bits;
}
float ScaleOf(WeightFormat format, uint16_t bits) {
  if (HalfScales(format)) {
    Fp16 half;
    half.bits = bits;
    return static_cast<float>(half);
  }
  Bf16 brain;
  brain.bits = bits;
  return static_cast<float>(brain);
}
// The nearest scale that can be stored.
float Stored(WeightFormat format, float scale) { return ScaleOf(format, ScaleBits(format, scale)); }

// The scales that are tried: the whole range, and for 4 bits narrower ones, whose ends are clamped, and those that use
// the one number more below zero.
float BestScale(WeightFormat format, const float* x) {
  Quad most = {};
  for (int i = 0; i < kQuads; ++i) {
    const Quad value = QuadAt(x, i), magnitude = value < 0 ? -value : value;
    most = magnitude > most ? magnitude : most;
  }
  const float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  if (largest < kLeastMagnitude) return 0;
  if (WeightBits(format) == 8) return Stored(format, largest / 127);
  float best = Stored(format, largest / 8.5F);  // where errors are too large to be squared
  float least = std::numeric_limits<float>::infinity();
  constexpr int kSteps = 7;
  for (int step = 0; step < 2 * kSteps; ++step) {
    // The end with the larger magnitude is at 8.5, 8.25 …: a negative scale turns the range round.
    const float sign = step % 2 == 0 ? 1.0F : -1.0F;
    const float scale = Stored(format, sign * largest / (8.5F - 0.25F * static_cast<float>(step / 2)));
    if (scale == 0) continue;
    if (const float error = ErrorOf(x, scale); error < least) least = error, best = scale;
  }
  return best;
}

// Numbers k in [begin, end) of a group.
void PutQuads(WeightFormat format, const float* x, float scale, float least, int64_t column, char* block, int begin = 0,
              int end = kGroupSize) {
  const float inverse = scale == 0 ? 0 : 1 / scale, zero = static_cast<float>(WeightZero(format));
  const float most = static_cast<float>((1 << WeightBits(format)) - 1) - zero;
  for (int i = begin / 4; i < end / 4; ++i) {
    const Quad numbers = RoundToWhole(Within((QuadAt(x, i) - least) * inverse, -zero, most)) + zero;
    for (int k = 0; k < 4; ++k) Put(format, block, column, 4 * i + k, static_cast<uint32_t>(numbers[k]));
  }
}

// Each half by the scale at which its largest magnitude is 31.
void QuantizeHalves(WeightFormat format, const float* x, int64_t column, char* block) {
  constexpr int kHalf = kGroupSize / 2;
  for (int begin = 0; begin < kGroupSize; begin += kHalf) {
    float largest = 0;
    for (int i = begin; i < begin + kHalf; ++i) largest = std::max(largest, std::fabs(x[i]));
    const uint16_t bits = ScaleBits(format, largest < kLeastMagnitude ? 0 : largest / 31);
    std::memcpy(block + (begin == 0 ? 0 : kLeastOffset) + column * 2, &bits, 2);
    PutQuads(format, x, ScaleOf(format, bits), 0, column, block, begin, begin + kHalf);
  }
}

// The nearest codes of fp4, at the scale by which the largest magnitude is at most 6 and above 3.
void QuantizeFp4(const float* x, int64_t column, char* block) {
  float largest = 0;
  for (int i = 0; i < kGroupSize; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale =
      largest < kLeastMagnitude
          ? 0
          : std::ldexp(0.5F, std::ilogb(largest) - (largest > std::ldexp(1.5F, std::ilogb(largest)) ? 1 : 2));
  const Bf16 stored(scale);
  std::memcpy(block + column * 2, &stored.bits, 2);
  for (int i = 0; i < kGroupSize; ++i) {
    uint32_t best = 0;
    for (uint32_t code = 1; code < 16; ++code) {
      const auto error = [&](uint32_t of) { return std::fabs(x[i] - static_cast<float>(kTwiceFp4[of]) * scale); };
      if (error(code) < error(best)) best = code;
    }
    Put(WeightFormat::kMxfp4, block, column, i, best);
  }
}

void QuantizeGroup(WeightFormat format, const float* x, int64_t column, char* block) {
  if (format == WeightFormat::kMxfp4) return QuantizeFp4(x, column, block);
  if (format == WeightFormat::kQ6_K) return QuantizeHalves(format, x, column, block);
  float scale = 0, least = 0;
  if (HasLeast(format)) {
    const auto [low, high] = std::minmax_element(x, x + kGroupSize);
    const uint16_t bits = ScaleBits(format, *low);
    least = ScaleOf(format, bits);
    scale = Stored(format, (*high - least) / 15);
    std::memcpy(block + kLeastOffset + column * 2, &bits, 2);
  } else {
    scale = BestScale(format, x);
  }
  const uint16_t bits = ScaleBits(format, scale);
  std::memcpy(block + column * 2, &bits, 2);
  PutQuads(format, x, scale, least, column, block);
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

void StoreColumns(WeightFormat format, const StoredNumbers& rows, int64_t count, int64_t k, int64_t column,
                  char* panel) {
  // By layout: formats of as many bits differ in what the bits mean.
  if (HasLeast(format)) return StoreColumnsAs<WeightFormat::kQ4_1>(rows, count, k, column, panel);
  if (WeightBits(format) == 8) return StoreColumnsAs<WeightFormat::kQ8_0>(rows, count, k, column, panel);
  if (WeightBits(format) == 6) return StoreColumnsAs<WeightFormat::kQ6_K>(rows, count, k, column, panel);
  StoreColumnsAs<WeightFormat::kQ4_0>(rows, count, k, column, panel);
}

void DequantizeColumn(WeightFormat format, const char* panel, int64_t column, int64_t k, float* to) {
  for (int64_t begin = 0; begin < k; begin += kQuantGroup, panel += QuantBlockBytes(format)) {
    uint16_t bits;
    std::memcpy(&bits, panel + column * 2, 2);
    const float first = ScaleOf(format, bits);
    float least = 0, second = first;
    if (HasLeast(format) || ScaleGroup(format) < kQuantGroup) {
      std::memcpy(&bits, panel + kLeastOffset + column * 2, 2);
      (HasLeast(format) ? least : second) = ScaleOf(format, bits);
    }
    for (int64_t i = begin; i < std::min(begin + kQuantGroup, k); ++i) {
      const auto q = static_cast<int32_t>(Get(format, panel, column, static_cast<int>(i - begin)));
      const int32_t number = format == WeightFormat::kMxfp4 ? kTwiceFp4[q] : q - WeightZero(format);
      to[i] = static_cast<float>(number) * (i - begin < ScaleGroup(format) ? first : second) + least;
    }
  }
}

}  // namespace switchyard::ops
