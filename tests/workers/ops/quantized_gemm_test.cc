// Weights of 8 and 4 bits: what packing makes of numbers, and products beside a double-precision reference of the
// formulas in weight_format.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/reference/gemm.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::ops {
namespace {

using testing::HasSubstr;

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kQ8_0,
                                     WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ6_K};

Tensor Unpacked(const Weight& w) {
  Tensor rows(w.dtype(), {w.n(), w.k()});
  SY_CHECK_OK(w.UnpackRows(0, rows));
  return rows;
}

// x[k] as the products see it: whole numbers in groups of 32, times the largest magnitude / 127.
std::vector<double> QuantizedRows(const TensorView& x) {
  std::vector<double> values = ToDoubles(x);
  const int64_t k = x.dim(1);
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t begin = 0; begin < k; begin += kQuantGroup) {
      float largest = 0;
      double* const group = values.data() + row * k + begin;
      const int64_t count = std::min(kQuantGroup, k - begin);
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(static_cast<float>(group[i])));
      const float inverse = largest > 0 ? 127 / largest : 0;
      for (int64_t i = 0; i < count; ++i) {
        group[i] = static_cast<double>(std::nearbyint(static_cast<float>(group[i]) * inverse)) *
                   static_cast<double>(largest / 127);
      }
    }
  }
  return values;
}

// ---- packing

TEST(QuantizedWeightTest, NumbersThatFitComeBack) {
  for (const WeightFormat format : kFormats) {
    for (const auto layout : {WeightLayout::kPanels, WeightLayout::kGatedPanels}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2, 1}, {64, 32}, {66, 33}, {130, 95}, {200, 64}}) {
        // Each group of a row has the numbers at both ends, so that its scale is a power of two.
        const Tensor rows(DType::kF32, {n, k});
        const int bits = static_cast<int>(WeightBits(format)), numbers = bits == 4 ? 16 : (1 << bits) - 1;
        const int lowest = bits == 4 ? -8 : -(numbers / 2);
        for (int64_t i = 0; i < n; ++i) {
          const double scale = std::ldexp(1.0, static_cast<int>(i % 7) - 3);
          for (int64_t j = 0; j < k; ++j) {
            int64_t number = lowest + (i * 31 + j * 17) % numbers;
            if (j % 16 < 2) number = j % 16 == 0 ? lowest : lowest + numbers - 1;
            SetElement(rows, i, j, static_cast<double>(number) * scale);
          }
        }
        Weight w({.n = n, .k = k, .dtype = DType::kF32, .layout = layout, .format = format});
        for (int64_t end = n; end > 0; end -= std::min<int64_t>(end, 47)) {
          const int64_t begin = std::max<int64_t>(end - 47, 0);
          ASSERT_TRUE(w.PackRows(begin, rows.view().Rows(begin, end - begin)).ok());
        }
        EXPECT_EQ(ToDoubles(Unpacked(w)), ToDoubles(rows)) << w.desc().ToString();
      }
    }
  }
}

TEST(QuantizedWeightTest, ValuesOfFp4ComeBackAndOthersAreTheNearest) {
  const int64_t k = 40;
  const Tensor rows(DType::kF32, {34, k});
  for (int64_t i = 0; i < 34; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(i % 9) - 4);
    for (int64_t j = 0; j < k; ++j) {
      const int code = j % kQuantGroup == 0 ? 7 : static_cast<int>((i * 5 + j * 3) % 16);
      SetElement(rows, i, j, kTwiceFp4[code] * scale);
    }
  }
  Weight w({.n = 34, .k = k, .dtype = DType::kF32, .format = WeightFormat::kMxfp4});
  ASSERT_TRUE(w.PackRows(0, rows).ok());
  EXPECT_EQ(ToDoubles(Unpacked(w)), ToDoubles(rows));
  // Between the values 2 and 3 of a scale, and beyond the largest, 6.
  const Tensor others(DType::kF32, {1, k});
  for (int64_t j = 0; j < k; ++j) SetElement(others, 0, j, j == 0 ? 6.9 : j % 2 == 0 ? 2.4 : -2.6);
  Weight one({.n = 1, .k = k, .dtype = DType::kF32, .format = WeightFormat::kMxfp4});
  ASSERT_TRUE(one.PackRows(0, others).ok());
  const std::vector<double> got = ToDoubles(Unpacked(one));
  for (int64_t j = 0; j < kQuantGroup; ++j) EXPECT_EQ(got[j], j == 0 ? 6 : j % 2 == 0 ? 2 : -3) << j;
}

TEST(QuantizedWeightTest, ErrorsAreAtMostAStep) {
  const Tensor rows = RandomMatrix(DType::kF32, 70, 97, 1);
  for (const WeightFormat format : kFormats) {
    const Weight w = Packed(Stream::OnCpu(std::make_unique<ThreadPool>(1).get()), rows, WeightLayout::kPanels, format);
    const std::vector<double> got = ToDoubles(Unpacked(w)), want = ToDoubles(rows);
    double squares = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      // The largest magnitude of a group is below 1; a scale has the rounding error of a bf16.
      const int64_t bits = WeightBits(format);
      const double limit = bits == 8 ? 0.5 / 127 + 1.0 / 256 : bits == 6 ? 0.5 / 31 + 1.0 / 2048 : 1.01 / 7;
      ASSERT_LE(std::fabs(got[i] - want[i]), limit) << i;
      squares += (got[i] - want[i]) * (got[i] - want[i]);
    }
    const double rms = std::sqrt(squares / static_cast<double>(got.size()));
    EXPECT_LE(rms, WeightBits(format) == 8   ? 0.003
                   : WeightBits(format) == 6 ? 0.009
                                             : 0.045)
        << WeightFormatName(format);
  }
}

TEST(QuantizedWeightTest, BytesAreBitsAndScales) {
  const WeightDesc desc = {.n = 2048, .k = 1024, .dtype = DType::kBf16};
  for (const auto& [format, bits] :
       {std::pair{WeightFormat::kInt8, 8.5}, {WeightFormat::kInt4, 4.5}, {WeightFormat::kQ6_K, 7.0}}) {
    WeightDesc quantized = desc;
    quantized.format = format;
    EXPECT_EQ(PackedBytes(quantized), static_cast<int64_t>(2048 * 1024 * bits / 8));
    EXPECT_EQ(quantized.ToString(), absl::StrCat("bf16 ", WeightFormatName(format), " [2048, 1024]"));
  }
}

TEST(QuantizedWeightTest, NamesAndErrors) {
  EXPECT_EQ(FindWeightFormat("int4"), WeightFormat::kInt4);
  EXPECT_EQ(FindWeightFormat("int5"), std::nullopt);
  ThreadPool pool(1);
  const Stream stream = Stream::OnCpu(&pool);
  EXPECT_EQ(
      Weight::Allocate({.n = 8, .k = 40, .format = WeightFormat::kInt8}, {.kind = DeviceKind::kCuda}).status().code(),
      absl::StatusCode::kUnimplemented);
  // Of one group's weights, one of another format.
  const Tensor rows = RandomMatrix(DType::kBf16, 8, 40, 1), xs = RandomMatrix(DType::kBf16, 2, 40, 1);
  const Weight a = Packed(stream, rows, WeightLayout::kPanels, WeightFormat::kInt8), b = Packed(stream, rows);
  const Tensor ys(DType::kBf16, {2, 8});
  const std::vector<int32_t> offsets = {0, 1, 2};
  const std::vector<const Weight*> weights = {&a, &b};
  EXPECT_THAT(std::string(GroupedGemm(stream, {}, xs, weights, offsets, ys).message()),
              HasSubstr("weight 1 is plain, those before it int8"));
}

// ---- products

class QuantizedGemmTest : public testing::TestWithParam<GemmFormatCase> {
 protected:
  ThreadPool pool_{2, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
};

struct Side {
  int64_t m, n, k;
};
constexpr Side kSides[] = {{0, 5, 7},     {1, 1, 1},    {3, 1, 33},    {1, 33, 31},  {2, 31, 65},
                           {5, 32, 32},   {7, 64, 100}, {9, 40, 256},  {12, 96, 48}, {16, 32, 64},
                           {17, 47, 129}, {33, 40, 95}, {130, 70, 160}};

TEST_P(QuantizedGemmTest, IsTheFormula) {
  const auto [isa, dtype, format] = GetParam();
  for (const Side& side : kSides) {
    SCOPED_TRACE(absl::StrCat(side.m, "x", side.n, "x", side.k));
    const Tensor x = RandomMatrix(dtype, side.m, side.k, 1), w = RandomMatrix(DType::kF32, side.n, side.k, 2);
    const Tensor bias = RandomMatrix(dtype, 1, side.n, 3), y(DType::kF32, {side.m, side.n});
    // Packed with fp32's dtype for the values that the products see; with x's for the product.
    const Weight exact = Packed(stream_, w, WeightLayout::kPanels, format);
    Weight packed({.n = side.n, .k = side.k, .dtype = dtype, .format = format});
    ASSERT_TRUE(packed.PackRows(0, w).ok());
    const reference::Product want =
        reference::Gemm(QuantizedRows(x), ToDoubles(Unpacked(exact)), side.m, side.n, side.k);
    ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, packed, bias.view().Reshape({side.n}), y).ok());
    for (int64_t i = 0; i < side.m; ++i) {
      for (int64_t j = 0; j < side.n; ++j) {
        const double b = GetElement(bias, 0, j), magnitude = want.magnitude[i * side.n + j] + std::fabs(b);
        ASSERT_NEAR(GetElement(y, i, j), want.y[i * side.n + j] + b, (side.k / 8.0 + 16) * 0x1p-24 * magnitude + 1e-30)
            << "at " << i << ", " << j;
      }
    }
  }
}

TEST_P(QuantizedGemmTest, GatedIsTheFormula) {
  const auto [isa, dtype, format] = GetParam();
  const int64_t m = 5, f = 45, k = 70;
  const Tensor x = RandomMatrix(dtype, m, k, 1), w = RandomMatrix(DType::kF32, 2 * f, k, 2), y(dtype, {m, f});
  Weight packed({.n = 2 * f, .k = k, .dtype = dtype, .layout = WeightLayout::kGatedPanels, .format = format});
  ASSERT_TRUE(packed.PackRows(0, w).ok());
  const Weight exact = Packed(stream_, w, WeightLayout::kPanels, format);
  const reference::Product want = reference::Gemm(QuantizedRows(x), ToDoubles(Unpacked(exact)), m, 2 * f, k);
  ASSERT_TRUE(GatedGemm(stream_, x, packed, y, isa).ok());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < f; ++j) {
      const double expected = reference::Silu(want.y[i * 2 * f + j]) * want.y[i * 2 * f + f + j];
      ASSERT_NEAR(GetElement(y, i, j), expected, 2 * Epsilon(dtype) * std::fabs(expected) + 1e-4) << i << ", " << j;
    }
  }
}

// What is not finite must not look like a number.
TEST_P(QuantizedGemmTest, NotFiniteStaysSo) {
  const auto [isa, dtype, format] = GetParam();
  const Tensor w = RandomMatrix(dtype, 8, 70, 2), y(DType::kF32, {3, 8});
  const Weight packed = Packed(stream_, w, WeightLayout::kPanels, format);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Tensor x = RandomMatrix(dtype, 3, 70, 1);
    SetElement(x, 1, 40, bad);
    ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, packed, TensorView(), y).ok());
    for (int64_t j = 0; j < 8; ++j) {
      EXPECT_TRUE(std::isnan(GetElement(y, 1, j)));
      EXPECT_TRUE(std::isfinite(GetElement(y, 0, j)) && std::isfinite(GetElement(y, 2, j)));
    }
  }
}

// The largest numbers of all: sums of a group fit where they are kept.
TEST_P(QuantizedGemmTest, Extremes) {
  const auto [isa, dtype, format] = GetParam();
  const int64_t k = 64, bits = WeightBits(format), lowest = bits == 8 ? -127 : bits == 6 ? -31 : -8;
  for (const double sign : {1.0, -1.0}) {
    const Tensor x(dtype, {1, k}), w(dtype, {32, k}), y(DType::kF32, {1, 32});
    for (int64_t i = 0; i < k; ++i) {
      SetElement(x, 0, i, sign * 127);
      for (int64_t j = 0; j < 32; ++j) SetElement(w, j, i, static_cast<double>(j % 2 == 0 ? lowest : -lowest));
    }
    ASSERT_TRUE(
        Gemm(stream_, {.isa = isa}, x, Packed(stream_, w, WeightLayout::kPanels, format), TensorView(), y).ok());
    for (int64_t j = 0; j < 32; ++j) {
      const double number = static_cast<double>(j % 2 == 0 ? lowest : -lowest);
      ASSERT_EQ(GetElement(y, 0, j), sign * 127 * number * static_cast<double>(k)) << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, QuantizedGemmTest, testing::ValuesIn(QuantizedGemmCases()), FormatCaseName);

}  // namespace
}  // namespace switchyard::ops
