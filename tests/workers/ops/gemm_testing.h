// Utilities of the tests of matrix products: seeded tensors, bit comparison, the (instruction set, dtype) pairs that
// this machine can run.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

struct GemmCase {
  Isa isa;
  DType dtype;
};
inline std::string CaseName(const testing::TestParamInfo<GemmCase>& param_info) {
  return absl::StrCat(IsaName(param_info.param.isa), "_", DTypeName(param_info.param.dtype));
}
inline void PrintTo(const GemmCase& c, std::ostream* out) { *out << IsaName(c.isa) << " " << DTypeName(c.dtype); }

inline std::vector<GemmCase> AllGemmCases() {
  std::vector<GemmCase> cases;
  for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16}) {
      cases.push_back({static_cast<Isa>(isa), dtype});
    }
  }
  return cases;
}

// The same with the formats of a weight, on each instruction set.
struct GemmFormatCase {
  Isa isa;
  DType dtype;
  WeightFormat format;
};
inline std::string FormatCaseName(const testing::TestParamInfo<GemmFormatCase>& param_info) {
  const auto& [isa, dtype, format] = param_info.param;
  return absl::StrCat(IsaName(isa), "_", DTypeName(dtype), "_", WeightFormatName(format));
}
inline void PrintTo(const GemmFormatCase& c, std::ostream* out) {
  *out << IsaName(c.isa) << " " << DTypeName(c.dtype) << " " << WeightFormatName(c.format);
}
inline std::vector<GemmFormatCase> QuantizedGemmCases() {
  std::vector<GemmFormatCase> cases;
  for (const GemmCase& c : AllGemmCases()) {
    if (c.dtype == DType::kF64) continue;
    for (const WeightFormat format :
         {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
          WeightFormat::kMxfp4, WeightFormat::kQ6_K}) {
      cases.push_back({c.isa, c.dtype, format});
    }
  }
  return cases;
}
inline std::vector<GemmFormatCase> AllGemmFormatCases() {
  std::vector<GemmFormatCase> cases = QuantizedGemmCases();
  for (const GemmCase& c : AllGemmCases()) cases.push_back({c.isa, c.dtype, WeightFormat::kPlain});
  return cases;
}

inline void SetElement(const TensorView& t, int64_t i, int64_t j, double value) {
  VisitDType(t.dtype(), [&]<class Elem>() {
    if constexpr (std::is_same_v<Elem, double>) {
      t.row<double>(i)[j] = value;
    } else {
      t.row<Elem>(i)[j] = Elem(static_cast<float>(value));
    }
  });
}

inline double GetElement(const TensorView& t, int64_t i, int64_t j) {
  return VisitDType(t.dtype(), [&]<class Elem>() {
    if constexpr (std::is_same_v<Elem, double>) {
      return t.row<double>(i)[j];
    } else {
      return static_cast<double>(static_cast<float>(t.row<Elem>(i)[j]));
    }
  });
}

// A matrix of values in [-1, 1), a few of them tiny, zero and negative zero.
inline Tensor RandomMatrix(DType dtype, int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 rng(seed);
  Tensor t(dtype, {rows, columns});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint32_t bits = rng();
      double value = static_cast<double>(bits) / 2147483648.0 - 1.0;
      if (bits % 61 == 0) value *= 1e-30;
      if (bits % 67 == 0) value = bits % 2 == 0 ? 0.0 : -0.0;
      SetElement(t, i, j, value);
    }
  }
  return t;
}

inline std::vector<double> ToDoubles(const TensorView& t) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.dim(0); ++i) {
    for (int64_t j = 0; j < t.dim(1); ++j) values.push_back(GetElement(t, i, j));
  }
  return values;
}

// Row i of a and row j of b have the same bits.
inline bool SameRow(const TensorView& a, int64_t i, const TensorView& b, int64_t j) {
  const int64_t bytes = a.dim(1) * DTypeBytes(a.dtype());
  return std::memcmp(a.Rows(i, 1).raw(), b.Rows(j, 1).raw(), bytes) == 0;
}

inline Weight Packed(const Stream& stream, const TensorView& rows, WeightLayout layout = WeightLayout::kPanels,
                     WeightFormat format = WeightFormat::kPlain) {
  absl::StatusOr<Weight> weight = PackWeight(
      stream, {.n = rows.dim(0), .k = rows.dim(1), .dtype = rows.dtype(), .layout = layout, .format = format}, rows);
  SY_CHECK_OK(weight.status());
  return *std::move(weight);
}

// The rounding unit of a dtype.
inline double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

}  // namespace switchyard::ops
