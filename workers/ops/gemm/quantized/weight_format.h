// How a packed weight's numbers are stored: as its dtype's, or quantized to a few bits.
//
// A quantized weight has groups of 32 consecutive k of an output column; w[k] = scale · (q[k] - zero), where `scale` is
// the group's, in bf16 (Q8_0 and Q4_0, whose numbers are as GGUF files have them: in fp16), and `zero` the format's
// constant, so that q is unsigned: 128 for 8 bits, 8 for 4.  Q4_1 has a least value beside the scale, both in fp16:
// w[k] = scale · q[k] + least.  Q6_K has a scale in fp16 for each 16 k; its zero is 32.  Numbers of MXFP4 are codes of
// fp4, of which q is twice the value (kTwiceFp4), and scales are half of a power of two, in bf16.  Products on
// CPUs quantize x, too, in these groups: x[k] = x_scale · xq[k], |xq| <= 127, x_scale = largest |x| / 127, of that row
// alone.  Sums within a group are exact integers; each scale's is rounded to fp32 and added by one fma, in rising order
// of k.  So a row's bits depend on no other row.  On a device x stays as it is (ops/cuda/few_bits_tile_cuda.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

enum class WeightFormat : uint8_t { kPlain, kInt8, kInt4, kQ8_0, kQ4_0, kQ4_1, kMxfp4, kQ6_K };

// The format of lm_head beside matrices of a format: never below 6 bits, as its errors are those of the probabilities.
constexpr WeightFormat HeadFormat(WeightFormat format) {
  if (format == WeightFormat::kPlain || format == WeightFormat::kInt8 || format == WeightFormat::kQ6_K) return format;
  return format == WeightFormat::kInt4 ? WeightFormat::kInt8 : WeightFormat::kQ8_0;
}
// The same where all are quantized when they are loaded.
constexpr WeightFormat HeadFormatAtLoad(WeightFormat format) {
  return format == WeightFormat::kInt4 ? WeightFormat::kQ6_K : HeadFormat(format);
}

// The formats of a layer's matrices.
struct LayerFormats {
  bool operator==(const LayerFormats&) const = default;

  WeightFormat qkv = {}, o = {};                     // of attention
  WeightFormat dense_gate_up = {}, dense_down = {};  // of a feed-forward without a router, or a shared expert
  WeightFormat gate_up = {}, down = {};              // of routed experts
};

// The formats of a model's matrices.
struct WeightFormats {
  WeightFormats(WeightFormat all = WeightFormat::kPlain)  // NOLINT
      : WeightFormats(all, all, all, HeadFormatAtLoad(all)) {}
  // dense: of all but routed experts and lm_head.
  WeightFormats(WeightFormat dense, WeightFormat gate_up, WeightFormat down, WeightFormat of_head)
      : all_layers{dense, dense, dense, dense, gate_up, down}, head(of_head) {}
  bool operator==(const WeightFormats&) const = default;
  // Of the model's layer.
  const LayerFormats& of(size_t layer) const { return layers.empty() ? all_layers : layers[layer]; }

  LayerFormats all_layers;
  std::vector<LayerFormats> layers;  // instead of all_layers, where they differ: all of the model's
  WeightFormat head;                 // of lm_head
};

// How a model's matrices are held.
struct WeightType {
  WeightType() = default;
  WeightType(DType compute, WeightFormats held = {}) : dtype(compute), format(held) {}  // NOLINT

  DType dtype = DType::kBf16;  // of x and y; and of the numbers, if plain
  WeightFormats format;
};

inline constexpr int64_t kQuantGroup = 32;  // consecutive k of x with one scale, and of most formats' weights

// "plain", "int8", "int4", "q8_0", "q4_0", "q4_1", "mxfp4", "q6_k".
const char* WeightFormatName(WeightFormat format);
std::optional<WeightFormat> FindWeightFormat(absl::string_view name);
// "int4"; "q8_0, experts q4_1"; "q4_1 and q6_k, experts q8_0 and q4_1", in the order of WeightFormat.  Says nothing of
// lm_head.
std::string ToString(const WeightFormats& formats);
// "bf16", "int4 (bf16)".
std::string ToString(const WeightType& type);

// Bits of a stored number without its share of a scale.  REQUIRES: not kPlain.
constexpr int64_t WeightBits(WeightFormat format) {
  if (format == WeightFormat::kQ6_K) return 6;
  return format == WeightFormat::kInt8 || format == WeightFormat::kQ8_0 ? 8 : 4;
}
// Consecutive k with one scale.
constexpr int64_t ScaleGroup(WeightFormat format) { return format == WeightFormat::kQ6_K ? 16 : kQuantGroup; }
// Whether a group has a least value.
constexpr bool HasLeast(WeightFormat format) { return format == WeightFormat::kQ4_1; }
// The stored number that stands for 0, or for the least value.  REQUIRES: not kPlain.
constexpr int32_t WeightZero(WeightFormat format) {
  if (HasLeast(format) || format == WeightFormat::kMxfp4) return 0;
  return 1 << (WeightBits(format) - 1);
}
// Whether scales are fp16, not bf16.  REQUIRES: not kPlain.
constexpr bool HalfScales(WeightFormat format) {
  return format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_0 || format == WeightFormat::kQ4_1 ||
         format == WeightFormat::kQ6_K;
}

// Twice the values of fp4 (E2M1) by code.
inline constexpr int8_t kTwiceFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Rows of k numbers that are quantized already, with the format's zero, and their groups' scales and least values (null
// where the format has none) as bits; k is a multiple of kQuantGroup.
struct StoredNumbers {
  uint8_t* numbers = nullptr;  // [rows, k]
  uint16_t* scales = nullptr;  // [rows, k / ScaleGroup]
  uint16_t* least = nullptr;   // [rows, k / 32]
  int64_t stride = 1;          // from a row to the next, in rows; readers of files write rows without gaps
};

}  // namespace switchyard::ops
