// How the KV cache holds a key or value: in the model's dtype, or in 8 bits.
//
// In 8 bits a head's D numbers have one scale of their own, fp32, so that a row's bits depend on no other:
//   int8  numbers in [-127, 127], value = number · scale, scale = max |x| / 127
//   fp8   E4M3 (4 bits of exponent, 3 of mantissa, no infinity), value = number · scale, scale = max |x| / 448
// A block of the cache then has, for each kv head, the numbers of its positions and behind them their scales.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace switchyard::ops {

enum class KvFormat : uint8_t { kPlain, kInt8, kFp8 };

inline constexpr int64_t kKvScaleBytes = 4;

// "plain", "int8", "fp8".
const char* KvFormatName(KvFormat format);
std::optional<KvFormat> FindKvFormat(absl::string_view name);

// Writes the numbers of x [0, dim) and returns their scale.  REQUIRES: not kPlain.  What is not finite: NaN as scale.
float QuantizeKey(KvFormat format, const float* x, int64_t dim, uint8_t* numbers);

}  // namespace switchyard::ops
