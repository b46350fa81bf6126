#include "workers/ops/attention/kv_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "scheduler/base/check.h"

namespace switchyard::ops {
namespace {

constexpr const char* kNames[] = {"plain", "int8", "fp8"};
constexpr float kLeastScale = 1e-30F;  // 1 / scale must be a number
constexpr float kMostInt8 = 127, kMostE4m3 = 448;
constexpr uint32_t kMostE4m3Code = 0x7e;

// The nearest E4M3, ties to even.  REQUIRES: |x| <= 448 but for a rounding.
uint8_t E4m3(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  const float magnitude = std::fabs(x);
  // Below 2^-6 steps are 2^-9.
  if (magnitude < 0x1p-6F)
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9F)));
  bits += 0x7ffff + (bits >> 20 & 1);
  return static_cast<uint8_t>(sign | std::min((bits >> 20) - (uint32_t{127 - 7} << 3), kMostE4m3Code));
}

}  // namespace

const char* KvFormatName(KvFormat format) { return kNames[static_cast<int>(format)]; }

std::optional<KvFormat> FindKvFormat(absl::string_view name) {
  for (const KvFormat format : {KvFormat::kPlain, KvFormat::kInt8, KvFormat::kFp8}) {
    if (name == KvFormatName(format)) return format;
  }
  return std::nullopt;
}

float QuantizeKey(KvFormat format, const float* x, int64_t dim, uint8_t* numbers) {
  SY_CHECK(format != KvFormat::kPlain);
  float most = 0;
  bool finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    most = std::max(most, std::fabs(x[d]));
    finite = finite && std::isfinite(x[d]);
  }
  const bool is_int8 = format == KvFormat::kInt8;
  const float scale = std::max(most / (is_int8 ? kMostInt8 : kMostE4m3), kLeastScale), inverse = 1 / scale;
  if (!finite) {
    std::memset(numbers, 1, static_cast<size_t>(dim));
    return std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t d = 0; d < dim; ++d) {
    const float number = x[d] * inverse;
    numbers[d] =
        is_int8 ? static_cast<uint8_t>(static_cast<int8_t>(std::clamp(std::nearbyint(number), -kMostInt8, kMostInt8)))
                : E4m3(std::clamp(number, -kMostE4m3, kMostE4m3));
  }
  return scale;
}

}  // namespace switchyard::ops
