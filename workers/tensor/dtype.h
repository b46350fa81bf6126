// Element types and the one visitor over the floating ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "scheduler/base/check.h"

namespace switchyard {

enum class DType : uint8_t { kF32, kF64, kBf16, kF16, kI32, kI64, kU8 };

constexpr int64_t DTypeBytes(DType dtype) {
  constexpr int8_t kBytes[] = {4, 8, 2, 2, 4, 8, 1};
  return kBytes[static_cast<int>(dtype)];
}

const char* DTypeName(DType dtype);  // "fp32", "fp64", "bf16", "fp16", "int32", "int64", "uint8"

// bfloat16: the upper half of an fp32.  Conversion from fp32 rounds to nearest even and keeps NaN a NaN.
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

// IEEE half; the conversions are the compiler's (_Float16: round to nearest even).
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

// The type of sums, and of the residual stream, of an element type.
template <class Elem>
using Acc = std::conditional_t<std::is_same_v<Elem, double>, double, float>;

template <class Elem>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<Bf16> : std::integral_constant<DType, DType::kBf16> {};
template <>
struct DTypeOf<Fp16> : std::integral_constant<DType, DType::kF16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kI32> {};
template <>
struct DTypeOf<int64_t> : std::integral_constant<DType, DType::kI64> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::kU8> {};

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
