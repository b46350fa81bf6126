// DenseGemm on CUDA against double precision: cuBLASLt and our kernels, shapes with and without remainders.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/gpu/gpu_test.h"
#include "tests/workers/ops/cuda/gemm_cuda_testing.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/gemm/cublas_refusals.h"

namespace switchyard::ops {
namespace {

using test::Product;
using test::ProductCase;
using test::TestCall;

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16};
constexpr int64_t kRows[] = {0, 1, 2, 7, 8, 17, 64, 130};
constexpr int64_t kDepths[] = {8, 24, 64, 200};
constexpr int64_t kColumns[] = {1, 8, 33, 256};

// Through ChooseDense, or with one kernel of ours.
void RunDense(const test::ProductCase& c, bool deterministic) {
  SCOPED_TRACE(absl::StrCat("deterministic ", deterministic));
  test::Product product(c);
  ASSERT_EQ(cuda::DenseGemm(test::TestCall(deterministic), product.Dense()), 0) << c;
  product.Check();
}

class DenseGemmTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SkipWithoutGpu(); }
};

// Each (rows, n, k) with some pair of (plain, bias, accumulate, both) and y's dtype; the next shape has another.
TEST_P(DenseGemmTest, Shapes) {
  int variant = 0;
  for (int64_t rows : kRows) {
    for (int64_t n : kColumns) {
      for (int64_t k : kDepths) {
        ++variant;
        const bool to_acc = variant % 2 == 0;
        RunDense({.dtype = GetParam(),
                  .y_dtype = to_acc ? AccDType(GetParam()) : GetParam(),
                  .expert_rows = {rows},
                  .n = n,
                  .k = k,
                  .accumulate = to_acc && variant % 4 == 0,
                  .bias = variant % 3 == 0,
                  .x_stride_extra = variant % 5 == 0   ? 1
                                    : variant % 7 == 0 ? 8
                                                       : 0,
                  .y_stride_extra = variant % 5},
                 variant % 8 < 4);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(DenseGemmTest, BiasAndAccumulate) {
  for (bool deterministic : {false, true}) {
    for (int64_t rows : {3, 20}) {
      for (bool bias : {false, true}) {
        RunDense({.dtype = GetParam(),
                  .y_dtype = AccDType(GetParam()),
                  .expert_rows = {rows},
                  .n = 48,
                  .k = 72,
                  .accumulate = true,
                  .bias = bias},
                 deterministic);
        RunDense({.dtype = GetParam(), .y_dtype = GetParam(), .expert_rows = {rows}, .n = 40, .k = 72, .bias = bias},
                 deterministic);
        RunDense({.dtype = GetParam(),
                  .y_dtype = AccDType(GetParam()),
                  .expert_rows = {rows},
                  .n = 40,
                  .k = 72,
                  .bias = bias},
                 deterministic);
      }
    }
  }
}

// k no multiple of 8: rows end within 16 bytes, and what follows them is poison.
TEST_P(DenseGemmTest, OddDepths) {
  for (int64_t k : {1, 7, 33, 129}) {
    for (bool deterministic : {false, true}) {
      RunDense({.dtype = GetParam(), .y_dtype = GetParam(), .expert_rows = {5}, .n = 20, .k = k}, deterministic);
      RunDense({.dtype = GetParam(), .y_dtype = GetParam(), .expert_rows = {18}, .n = 20, .k = k, .x_stride_extra = 3},
               deterministic);
    }
  }
}

TEST_P(DenseGemmTest, Gated) {
  for (int64_t rows : {1, 9, 33, 70}) {
    for (int64_t columns : {1, 8, 33, 128}) {
      RunDense({.dtype = GetParam(),
                .y_dtype = columns == 8 ? AccDType(GetParam()) : GetParam(),
                .expert_rows = {rows},
                .n = 2 * columns,
                .k = rows == 9 ? 136 : 40,
                .gated = true,
                .y_stride_extra = rows % 4},
               rows % 2 == 1);
    }
  }
}

// The library computes what is aligned, again from its memory of the shape, with each call's own pointers; rows that
// begin anywhere it leaves to our kernels (16-bit dtypes; the others are always aligned enough).
TEST_P(DenseGemmTest, WhoComputes) {
  test::ProductCase c = {.dtype = GetParam(),
                         .y_dtype = GetParam(),
                         .expert_rows = {40},
                         .n = 48,
                         .k = 64,
                         .bias = true,
                         .y_stride_extra = 16};
  const int64_t refusals = NumCublasRefusals();
  for (uint32_t seed : {1, 100, 200}) {
    c.seed = seed;
    RunDense(c, false);
  }
  EXPECT_EQ(NumCublasRefusals(), refusals);
  c.y_dtype = AccDType(GetParam());
  c.accumulate = true;
  RunDense(c, false);
  EXPECT_EQ(NumCublasRefusals(), refusals);
  const auto kind = [&](bool deterministic) {
    Product product(c);
    return ChooseDense(cuda::DescOf(TestCall(deterministic), cuda::ProblemOf(product.Dense()), /*grouped=*/false)).kind;
  };
  EXPECT_EQ(kind(false), CudaGemmKind::kCublasLt);
  c.x_stride_extra = 1;
  EXPECT_EQ(kind(false) == CudaGemmKind::kCublasLt, DTypeBytes(GetParam()) != 2);
  EXPECT_NE(kind(true), CudaGemmKind::kCublasLt);
  RunDense(c, false);
  RunDense(c, true);
  EXPECT_EQ(NumCublasRefusals(), refusals) << "it was not asked, or took the product";
}

INSTANTIATE_TEST_SUITE_P(DTypes, DenseGemmTest, testing::ValuesIn(kDTypes),
                         [](const auto& param) { return DTypeName(param.param); });

class GatedTest : public GpuTest {};

TEST_F(GatedTest, FarFromZero) {
  for (DType dtype : kDTypes) {
    test::Product product({.dtype = dtype, .y_dtype = dtype, .expert_rows = {2}, .n = 2, .k = 8, .gated = true});
    for (int64_t k = 0; k < 8; ++k) product.x().Set(0, k, 120), product.x().Set(1, k, -120);
    auto extreme = product.Subset({{0, 1}});
    ASSERT_EQ(cuda::DenseGemm(test::TestCall(true), extreme->Dense()), 0);
    extreme->Check();
  }
}

}  // namespace
}  // namespace switchyard::ops
