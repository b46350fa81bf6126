// The numbers of a matrix in 4 or 8 bits: groups of columns of a row with a scale each, stored as compressed-tensors'
// pack-quantized has them.
//
// A value is code · scale, the code within [-2^(bits - 1), 2^(bits - 1)) and the scale in bf16.  Codes are stored plus
// 2^(bits - 1), the first in the lowest bits of a word.  A scale may be negative: it turns the range round, so that the
// one number more below zero is on the side that needs it.  Pure; different rows may be written at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::quantize {

inline constexpr int64_t kGroupStep = 8;     // groups are multiples of this many columns
inline constexpr int64_t kMostGroup = 1024;  // columns of a group

struct GroupFormat {
  int bits = 4;  // or 8
  int64_t group = 32;
};

// InvalidArgument: bits or a group that are not understood; names the flag.
absl::Status CheckFormat(const GroupFormat& format);

// The scale with which a group's values are rounded to nearest, rounded to bf16: of 8 bits the one at which the largest
// magnitude is 127, of 4 bits the one of 14 candidates with the least sum of squared errors (ranges from 8.5 down to 7
// steps for the largest magnitude, either way round).  In groups of 32 those of `--quantization` (quantize_panel.h).
// 0: the group is zeros, or nearly.  REQUIRES: finite values, as many as a multiple of 4.
float ChooseScale(int bits, absl::Span<const float> values);

// The code of the value nearest to `value`; 0 if the scale is 0.
inline int32_t CodeOf(int bits, float value, float inverse_scale) {
  const float least = static_cast<float>(-(1 << (bits - 1))), most = -least - 1;
  float scaled = value * inverse_scale;
  scaled = scaled < least ? least : scaled;
  scaled = scaled > most ? most : scaled;
  constexpr float kWhole = 12582912.0F;  // 1.5 · 2^23: rounds to nearest even
  return static_cast<int32_t>((scaled + kWhole) - kWhole);
}
inline float InverseOf(float scale) { return scale == 0 ? 0 : 1 / scale; }

struct QuantizedMatrix {
  QuantizedMatrix() = default;
  // REQUIRES: the format is valid, columns a multiple of its group.
  QuantizedMatrix(const GroupFormat& format, int64_t rows, int64_t columns);

  int64_t row_words() const { return columns * format.bits / 32; }
  int64_t row_groups() const { return columns / format.group; }
  // Sets a group's scale and codes, which were zeros.
  void SetScale(int64_t row, int64_t group, float scale);
  void SetCode(int64_t row, int64_t column, int32_t code) {
    const int64_t bit = column * format.bits;
    words[static_cast<size_t>(row * row_words() + bit / 32)] |= static_cast<uint32_t>(code + (1 << (format.bits - 1)))
                                                                << (bit % 32);
  }
  // Values of rows [first, first + count) as fp32.
  void Read(int64_t first, int64_t count, float* to) const;  // [count, columns]
  int64_t bytes() const { return static_cast<int64_t>(4 * words.size() + 2 * scales.size()); }

  GroupFormat format;
  int64_t rows = 0, columns = 0;
  std::vector<uint32_t> words;   // [rows, columns · bits / 32]
  std::vector<uint16_t> scales;  // [rows, columns / group], bits of bf16
};

// Rounds one row's values to nearest.
void RoundRow(const float* values, int64_t row, QuantizedMatrix* to);

}  // namespace switchyard::quantize
