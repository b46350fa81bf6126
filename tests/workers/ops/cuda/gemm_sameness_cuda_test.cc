// Deterministic: a row's bits are the same alone and among others, in every place, through every kernel and grid that
// may be chosen for it.
#include <gtest/gtest.h>

#include "tests/gpu/gpu_test.h"
#include "tests/workers/ops/cuda/gemm_cuda_testing.h"

namespace switchyard::ops {
namespace {

using test::Product;
using test::ProductCase;
using test::TestCall;
using Rows = std::vector<std::vector<uint8_t>>;

Rows AllRows(test::Product* product) {
  product->Fetch();
  Rows rows;
  for (int64_t i = 0; i < product->rows(); ++i) rows.push_back(product->RowBits(i));
  return rows;
}

// The first row that differs, or -1.
int64_t FirstDifference(const Rows& got, const Rows& want) {
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) return static_cast<int64_t>(i);
  }
  return -1;
}

class GemmSamenessTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SkipWithoutGpu(); }

  test::ProductCase Case(bool gated) const {
    return {.dtype = GetParam(),
            .y_dtype = gated ? GetParam() : AccDType(GetParam()),
            .expert_rows = {3, 0, 70, 12},
            .n = gated ? 144 : 150,
            .k = 328,
            .gated = gated,
            .gather = true};
  }
  static Rows Run(test::Product* product) {
    EXPECT_EQ(cuda::GroupedGemm(test::TestCall(true), product->Grouped()), 0);
    return AllRows(product);
  }
};

TEST_P(GemmSamenessTest, EveryTileAndGrid) {
  if (GetParam() == DType::kF32 || GetParam() == DType::kF64) GTEST_SKIP() << "one kernel, one tile";
  for (bool gated : {false, true}) {
    test::Product product(Case(gated));
    const Rows want = Run(&product);
    int tiles = 0;
    for (int tile = 0; tile < kNumCudaGemmTiles; ++tile) {
      if (kCudaGemmTiles[tile].warps_k > 1 || kCudaGemmTiles[tile].wgmma) continue;
      if (!test::DeviceTakesTile(tile, 4)) continue;
      ++tiles;
      for (int64_t grid : {1, 7}) {
        product.ResetY();
        const CudaGemmConfig config = {.kind = CudaGemmKind::kTiles, .tile = tile, .grid = grid};
        ASSERT_EQ(cuda::LaunchGemm(test::TestCall(true), cuda::ProblemOf(product.Grouped()), config), 0);
        ASSERT_EQ(FirstDifference(AllRows(&product), want), -1)
            << kCudaGemmTiles[tile].name << " on " << grid << " CTAs, gated " << gated;
      }
    }
    ASSERT_GE(tiles, 3);
  }
}

TEST_P(GemmSamenessTest, AloneAndAmongOthers) {
  for (bool gated : {false, true}) {
    test::Product product(Case(gated));
    const Rows want = Run(&product);
    // Subsets: which rows of experts 0, 2, 3 (rows [0, 3), [3, 73), [73, 85)), in another order.
    std::vector<int64_t> backwards;
    for (int64_t row = 72; row >= 3; row -= 2) backwards.push_back(row);
    const std::vector<std::vector<int64_t>> subsets[] = {
        {{1}, {}, {}, {}}, {{}, {}, {3}, {}}, {{}, {}, {72}, {80}}, {{2, 0}, {}, backwards, {84, 73}}};
    for (const auto& rows : subsets) {
      const std::unique_ptr<test::Product> subset = product.Subset(rows);
      const Rows got = Run(subset.get());
      size_t at = 0;
      for (const std::vector<int64_t>& of_expert : rows) {
        for (int64_t row : of_expert) {
          ASSERT_TRUE(got[at++] == want[static_cast<size_t>(row)]) << "row " << row << ", gated " << gated;
        }
      }
    }
  }
}

// As a dense product with that expert's weights; rows one element out of line; few rows and many.
TEST_P(GemmSamenessTest, DenseAndUnaligned) {
  for (bool gated : {false, true}) {
    test::ProductCase c = Case(gated);
    c.gather = false;
    c.expert_rows = {140};
    test::Product product(c);
    const Rows want = Run(&product);
    for (int64_t rows : {1, 9, 40, 140}) {
      for (int64_t extra : {0, 1}) {
        c.expert_rows = {rows};
        c.x_stride_extra = extra;
        test::Product dense(c);  // the same seed: the same weights, and x's first rows
        const CudaCall call = test::TestCall(true);
        const cuda::GemmProblem problem = cuda::ProblemOf(dense.Dense());
        const CudaGemmConfig config = ChooseDense(cuda::DescOf(call, problem, /*grouped=*/false));
        ASSERT_EQ(cuda::LaunchGemm(call, problem, config), 0) << config;
        const Rows got = AllRows(&dense);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(got[i] == want[i]) << "row " << i << " of " << rows;
      }
    }
  }
}

// Experts with null weights belong to another call: their rows stay, all others get their bits.
TEST_P(GemmSamenessTest, InParts) {
  for (bool gated : {false, true}) {
    test::Product product(Case(gated));
    const Rows want = Run(&product);
    product.ResetY();
    const Rows untouched = AllRows(&product);
    const std::vector<std::vector<int>> parts = {{0, 3}, {2}};
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::unique_ptr<test::DeviceCopy> list = product.WeightsOf(parts[part]);
      CudaGemmArgs args = product.Grouped();
      args.weights = list->at<const void* const>();
      ASSERT_EQ(cuda::GroupedGemm(test::TestCall(true), args), 0);
      const Rows got = AllRows(&product);
      for (size_t row = 0; row < got.size(); ++row) {  // rows [3, 73) are expert 2's
        const bool computed = part == 1 || row < 3 || row >= 73;
        ASSERT_TRUE(got[row] == (computed ? want : untouched)[row]) << "row " << row << ", part " << part;
      }
    }
  }
}

// Again and again: no race, no stale shared memory.
TEST_P(GemmSamenessTest, TwiceTheSame) {
  test::Product product(Case(true));
  const Rows want = Run(&product);
  product.ResetY();
  EXPECT_EQ(FirstDifference(Run(&product), want), -1);
}

INSTANTIATE_TEST_SUITE_P(DTypes, GemmSamenessTest, testing::Values(DType::kF32, DType::kF64, DType::kBf16, DType::kF16),
                         [](const auto& param) { return DTypeName(param.param); });

}  // namespace
}  // namespace switchyard::ops
