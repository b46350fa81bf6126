// Every kernel against the double-precision reference, on shapes with and without remainders.
#include <gtest/gtest.h>

#include "tests/reference/gemm.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::ops {
namespace {

struct Side {
  int64_t m, n, k;
};
// 0 rows; one of everything; the shared expert's gate; odd sides; a panel and a tile exactly, and one off.
constexpr Side kSides[] = {{0, 5, 7},    {1, 1, 1},     {1, 1, 64},   {3, 1, 33},    {1, 33, 31},   {2, 31, 65},
                           {5, 32, 32},  {7, 64, 100},  {12, 96, 48}, {13, 33, 1},   {16, 32, 64},  {17, 47, 129},
                           {31, 65, 64}, {32, 64, 256}, {33, 40, 95}, {50, 129, 63}, {130, 70, 160}};

class GemmReferenceTest : public testing::TestWithParam<GemmCase> {
 protected:
  // How far a sum in AccDType of k products may be from the true one.
  double Tolerance(int64_t k) const { return 2.0 * (k + 2) * Epsilon(AccDType(GetParam().dtype)); }

  ThreadPool pool_{2, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
};

TEST_P(GemmReferenceTest, PlainBiasAndAccumulate) {
  const auto [isa, dtype] = GetParam();
  for (const Side& side : kSides) {
    SCOPED_TRACE(absl::StrCat(side.m, "x", side.n, "x", side.k));
    const Tensor x = RandomMatrix(dtype, side.m, side.k, 1);
    const Tensor w = RandomMatrix(dtype, side.n, side.k, 2);
    const Tensor bias = RandomMatrix(dtype, 1, side.n, 3);
    const Weight packed = Packed(stream_, w);
    const reference::Product want = reference::Gemm(ToDoubles(x), ToDoubles(w), side.m, side.n, side.k);
    for (DType y_dtype : {dtype, AccDType(dtype)}) {
      for (bool accumulate : {false, true}) {
        if (accumulate && y_dtype != AccDType(dtype)) continue;
        const Tensor before = RandomMatrix(y_dtype, side.m, side.n, 4);
        const Tensor y = RandomMatrix(y_dtype, side.m, side.n, 4);
        ASSERT_TRUE(
            Gemm(stream_, {.accumulate = accumulate, .isa = isa}, x, packed, bias.view().Reshape({side.n}), y).ok());
        for (int64_t i = 0; i < side.m; ++i) {
          for (int64_t j = 0; j < side.n; ++j) {
            const double b = GetElement(bias, 0, j), old = accumulate ? GetElement(before, i, j) : 0;
            const double expected = want.y[i * side.n + j] + b + old;
            const double bound = Tolerance(side.k) * (want.magnitude[i * side.n + j] + std::fabs(b) + std::fabs(old)) +
                                 2 * Epsilon(y_dtype) * std::fabs(expected) + 1e-30;
            ASSERT_NEAR(GetElement(y, i, j), expected, bound) << "at " << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST_P(GemmReferenceTest, Gated) {
  const auto [isa, dtype] = GetParam();
  for (const Side& side : kSides) {
    SCOPED_TRACE(absl::StrCat(side.m, "x", side.n, "x", side.k));
    const int64_t f = side.n;
    const Tensor x = RandomMatrix(dtype, side.m, side.k, 1);
    const Tensor w = RandomMatrix(dtype, 2 * f, side.k, 2);
    const Weight packed = Packed(stream_, w, WeightLayout::kGatedPanels);
    const reference::Product want = reference::Gemm(ToDoubles(x), ToDoubles(w), side.m, 2 * f, side.k);
    const Tensor y = RandomMatrix(dtype, side.m, f, 4);
    ASSERT_TRUE(GatedGemm(stream_, x, packed, y, isa).ok());
    for (int64_t i = 0; i < side.m; ++i) {
      for (int64_t j = 0; j < f; ++j) {
        const double gate = want.y[i * 2 * f + j], up = want.y[i * 2 * f + f + j];
        const double expected = reference::Silu(gate) * up;
        // silu's slope is below 1.1; its exponential is good to a few units.
        const double gate_error = Tolerance(side.k) * want.magnitude[i * 2 * f + j];
        const double up_error = Tolerance(side.k) * want.magnitude[i * 2 * f + f + j];
        const double bound = 1.1 * gate_error * std::fabs(up) + up_error * std::fabs(reference::Silu(gate)) +
                             1.1 * gate_error * up_error +
                             (2 * Epsilon(dtype) + 16 * Epsilon(AccDType(dtype))) * std::fabs(expected) +
                             (dtype == DType::kF16 ? 0x1p-24 : 1e-30);
        ASSERT_NEAR(GetElement(y, i, j), expected, bound) << "at " << i << ", " << j;
      }
    }
  }
}

// silu at its ends: no NaN from an exponential that overflows.
TEST_P(GemmReferenceTest, GatedFarFromZero) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, 2, 1, 1), w = RandomMatrix(dtype, 2, 1, 1), y = RandomMatrix(dtype, 2, 1, 1);
  SetElement(x, 0, 0, 200), SetElement(x, 1, 0, -200);
  SetElement(w, 0, 0, 1), SetElement(w, 1, 0, 0.5);
  ASSERT_TRUE(GatedGemm(stream_, x, Packed(stream_, w, WeightLayout::kGatedPanels), y, isa).ok());
  EXPECT_EQ(GetElement(y, 0, 0), 20000 - (dtype == DType::kBf16 ? 32 : 0));
  EXPECT_NEAR(GetElement(y, 1, 0), 0, 1e-30);
}

// Denormal weights and activations: fp32, fp64 and fp16 kernels do not flush them.
TEST_P(GemmReferenceTest, Denormals) {
  const auto [isa, dtype] = GetParam();
  if (dtype == DType::kBf16) GTEST_SKIP() << "vdpbf16ps and AMX take bf16 denormals for zero";
  const double tiny = dtype == DType::kF64 ? 0x1p-1050 : dtype == DType::kF32 ? 0x1p-140 : 0x1p-20;
  const Tensor x = RandomMatrix(dtype, 1, 3, 1), w = RandomMatrix(dtype, 1, 3, 1);
  for (int64_t i = 0; i < 3; ++i) SetElement(x, 0, i, tiny), SetElement(w, 0, i, 1);
  const Tensor y = RandomMatrix(AccDType(dtype), 1, 1, 1);
  ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, Packed(stream_, w), TensorView(), y).ok());
  EXPECT_EQ(GetElement(y, 0, 0), 3 * tiny);
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmReferenceTest, testing::ValuesIn(AllGemmCases()), CaseName);

}  // namespace
}  // namespace switchyard::ops
