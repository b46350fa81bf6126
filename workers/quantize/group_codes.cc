#include "workers/quantize/group_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "workers/tensor/dtype.h"

namespace switchyard::quantize {
namespace {

constexpr float kLeastMagnitude = 1e-30F;  // smaller groups are zeros: 1 / scale must be a number
constexpr int kSteps = 7;
constexpr size_t kLanes = 4;

float InBf16(float value) { return static_cast<float>(Bf16(value)); }

// Four at a time, as every x86-64 has them; as quantize_panel.cc does, so that sums are the same.
typedef float Four __attribute__((vector_size(16)));

float ErrorAt(int bits, absl::Span<const float> values, float scale) {
  const float limit = static_cast<float>(1 << (bits - 1));
  const Four least = -limit - Four{}, most = (limit - 1) - Four{}, whole = 12582912.0F - Four{};  // as in CodeOf
  const float inverse = 1 / scale;
  Four sums = {};
  for (size_t i = 0; i < values.size(); i += kLanes) {
    Four value;
    std::memcpy(&value, values.data() + i, sizeof(value));
    Four scaled = value * inverse;
    scaled = scaled < least ? least : scaled;
    scaled = scaled > most ? most : scaled;
    const Four error = value - ((scaled + whole) - whole) * scale;
    sums += error * error;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

absl::Status CheckFormat(const GroupFormat& format) {
  if (format.bits != 4 && format.bits != 8) {
    return absl::InvalidArgumentError(absl::StrCat("--format: ", format.bits, " bits; known are int4 and int8"));
  }
  if (format.group < kGroupStep || format.group > kMostGroup || format.group % kGroupStep != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--group_size=", format.group, ": must be a multiple of ",
                                                   kGroupStep, " from ", kGroupStep, " to ", kMostGroup));
  }
  return absl::OkStatus();
}

float ChooseScale(int bits, absl::Span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  if (largest < kLeastMagnitude) return 0;
  if (bits == 8) return InBf16(largest / 127);
  float best = InBf16(largest / 8.5F);  // where errors are too large to be squared
  float least = std::numeric_limits<float>::infinity();
  for (int step = 0; step < 2 * kSteps; ++step) {
    const float sign = step % 2 == 0 ? 1.0F : -1.0F;
    const float scale = InBf16(sign * largest / (8.5F - 0.25F * static_cast<float>(step / 2)));
    if (scale == 0) continue;
    if (const float error = ErrorAt(bits, values, scale); error < least) least = error, best = scale;
  }
  return best;
}

QuantizedMatrix::QuantizedMatrix(const GroupFormat& format, int64_t rows, int64_t columns)
    : format(format),
      rows(rows),
      columns(columns),
      words(static_cast<size_t>(rows * (columns * format.bits / 32))),
      scales(static_cast<size_t>(rows * (columns / format.group))) {}

void QuantizedMatrix::SetScale(int64_t row, int64_t group, float scale) {
  scales[static_cast<size_t>(row * row_groups() + group)] = Bf16(scale).bits;
}

void QuantizedMatrix::Read(int64_t first, int64_t count, float* to) const {
  const uint32_t mask = (1u << format.bits) - 1;
  for (int64_t row = first; row < first + count; ++row) {
    const uint32_t* const from = words.data() + row * row_words();
    for (int64_t column = 0; column < columns; ++column, ++to) {
      const int64_t bit = column * format.bits;
      const auto code = static_cast<int32_t>(from[bit / 32] >> (bit % 32) & mask) - (1 << (format.bits - 1));
      Bf16 scale;
      scale.bits = scales[static_cast<size_t>(row * row_groups() + column / format.group)];
      *to = static_cast<float>(code) * static_cast<float>(scale);
    }
  }
}

void RoundRow(const float* values, int64_t row, QuantizedMatrix* to) {
  const int64_t group = to->format.group;
  for (int64_t begin = 0; begin < to->columns; begin += group) {
    const float scale = ChooseScale(to->format.bits, {values + begin, static_cast<size_t>(group)});
    to->SetScale(row, begin / group, scale);
    const float inverse = InverseOf(scale);
    for (int64_t i = begin; i < begin + group; ++i) to->SetCode(row, i, CodeOf(to->format.bits, values[i], inverse));
  }
}

}  // namespace switchyard::quantize
