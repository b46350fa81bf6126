// Element types and the one visitor over the floating ones.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"

namespace switchyard {

enum class DType : uint8_t { kF32, kF64, kBf16, kF16, kI32, kI64, kU8 };

constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

const char* DTypeName(DType dtype);  // "fp32", "fp64", "bf16", "fp16", "int32", "int64", "uint8"

// bfloat16 as stored: the upper half of an fp32.  Conversion from fp32 rounds to nearest even and keeps NaN a NaN.
struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float value) {
    uint32_t u;
    std::memcpy(&u, &value, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};

// IEEE half as stored; the conversions are the compiler's (_Float16: round to nearest even).
struct Fp16 {
  uint16_t bits = 0;
  Fp16() = default;
  explicit Fp16(float value) {
    const _Float16 h = static_cast<_Float16>(value);
    std::memcpy(&bits, &h, 2);
  }
  explicit operator float() const {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return static_cast<float>(h);
  }
};

// What sums and the residual stream of an element type are kept in.
template <class Elem>
struct AccOf {
  using type = float;
};
template <>
struct AccOf<double> {
  using type = double;
};
template <class Elem>
using Acc = typename AccOf<Elem>::type;

template <class Elem>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::kBf16;
};
template <>
struct DTypeOf<Fp16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16 || dtype == DType::kF16;
}

// The dtype of Acc<Elem>: kF64 for kF64, else kF32.
constexpr DType AccDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Calls fn.template operator()<Elem>() with the element type.  REQUIRES: IsFloating(dtype).
template <class Fn>
decltype(auto) VisitDType(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kF64:
      return fn.template operator()<double>();
    case DType::kBf16:
      return fn.template operator()<Bf16>();
    case DType::kF16:
      return fn.template operator()<Fp16>();
    default:
      internal::CheckFailed(__FILE__, __LINE__, "dtype is floating", DTypeName(dtype));
  }
}

}  // namespace switchyard
