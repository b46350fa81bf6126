// The tiles of Hopper's wgmma where they differ from the others: more than one tile in every direction, narrow last
// tiles, and which products take them.
#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/gpu/gpu_test.h"
#include "tests/workers/ops/cuda/gemm_cuda_testing.h"

namespace switchyard::ops {
namespace {

using test::Product;
using test::ProductCase;
using test::TestCall;

void SkipWithoutWgmma() {
  SkipWithoutGpu();
  if (NumGpus() > 0 && !cuda::TakesWgmma(0)) GTEST_SKIP() << "no Hopper";
}

class WgmmaTileTest : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void SetUp() override { SkipWithoutWgmma(); }

  test::ProductCase Case() const { return {.dtype = std::get<1>(GetParam()), .y_dtype = std::get<1>(GetParam())}; }

  void Run(const test::ProductCase& c, bool dense = false) const {
    for (int64_t grid : {1, 3}) {
      test::Product product(c);
      const cuda::GemmProblem problem = dense ? cuda::ProblemOf(product.Dense()) : cuda::ProblemOf(product.Grouped());
      const CudaGemmConfig config = {.kind = CudaGemmKind::kTiles, .tile = std::get<0>(GetParam()), .grid = grid};
      ASSERT_EQ(cuda::LaunchGemm(test::TestCall(false), problem, config), 0);
      product.Check();
    }
  }
};

// One CTA goes from tiles of all their tokens to tiles of 64 and less and back, with the next one's loads under way.
TEST_P(WgmmaTileTest, BeyondOneTile) {
  test::ProductCase c = Case();
  c.expert_rows = {200, 0, 64, 129, 65, 1}, c.n = 296, c.k = 72, c.gather = true;
  Run(c);
  c.n = 560, c.gated = true, c.k = 24, c.expert_rows = {0, 192, 0};
  Run(c);
}

// Around every width that a product may have, and every number of blocks that are stored together.
TEST_P(WgmmaTileTest, AnyNumberOfTokens) {
  for (bool gated : {false, true}) {
    test::ProductCase c = Case();
    c.expert_rows = {1, 63, 64, 65, 96, 97, 128, 129, 160, 161, 191, 192, 193, 400}, c.gather = true;
    c.n = 136, c.k = 200, c.gated = gated;
    Run(c);
    if (HasFailure()) return;
  }
}

// Few steps and many: the stages' ring is not filled, filled exactly, and gone around.
TEST_P(WgmmaTileTest, Depths) {
  for (int64_t k : {8, 64, 128, 192, 256, 320, 1000}) {
    test::ProductCase c = Case();
    c.expert_rows = {3, 66}, c.n = 20, c.k = k;
    Run(c);
    if (HasFailure()) return;
  }
}

TEST_P(WgmmaTileTest, BiasAndAccumulate) {
  test::ProductCase c = Case();
  c.y_dtype = DType::kF32, c.expert_rows = {150}, c.n = 140, c.k = 136, c.bias = c.accumulate = true;
  Run(c, /*dense=*/true);
}

// y and x at odd addresses, in both types.  Such an x is stored at once, not when it is waited for, which shows a stage
// that is filled again too early.
TEST_P(WgmmaTileTest, Unaligned) {
  for (DType y_dtype : {Case().dtype, DType::kF32}) {
    test::ProductCase c = Case();
    c.y_dtype = y_dtype, c.expert_rows = {30, 195}, c.n = 278, c.k = 264, c.gated = true, c.gather = true;
    c.x_stride_extra = 3, c.y_stride_extra = 2;
    Run(c);
    c.n = 141, c.gated = false, c.y_stride_extra = 0;
    Run(c);
  }
}

std::string WgmmaCaseName(const testing::TestParamInfo<std::tuple<int, DType>>& param) {
  return absl::StrCat(kCudaGemmTiles[std::get<0>(param.param)].name, "_", DTypeName(std::get<1>(param.param)));
}

std::vector<int> WgmmaTiles() {
  std::vector<int> tiles;
  for (int i = 0; i < kNumCudaGemmTiles; ++i) {
    if (kCudaGemmTiles[i].wgmma) tiles.push_back(i);
  }
  return tiles;
}
INSTANTIATE_TEST_SUITE_P(Tiles, WgmmaTileTest,
                         testing::Combine(testing::ValuesIn(WgmmaTiles()), testing::Values(DType::kBf16, DType::kF16)),
                         WgmmaCaseName);

class WhoTakesWgmmaTest : public testing::Test {
 protected:
  void SetUp() override { SkipWithoutWgmma(); }

  static bool IsWgmma(const CudaGemmConfig& config) {
    return config.kind == CudaGemmKind::kTiles && kCudaGemmTiles[config.tile].wgmma;
  }
};

// Through the choice, as the workers do.
TEST_F(WhoTakesWgmmaTest, ManyRowsOfNotDeterministicProducts) {
  for (bool gated : {false, true}) {
    for (bool deterministic : {false, true}) {
      test::Product product({.expert_rows = {170, 0, 90}, .n = 144, .k = 136, .gated = gated, .gather = true});
      const CudaCall call = test::TestCall(deterministic);
      const cuda::GemmProblem problem = cuda::ProblemOf(product.Grouped());
      const CudaGemmConfig config = ChooseGrouped(cuda::DescOf(call, problem, /*grouped=*/true));
      ASSERT_EQ(IsWgmma(config), !deterministic) << config;
      ASSERT_EQ(cuda::GroupedGemm(call, product.Grouped()), 0);
      product.Check();
    }
  }
  test::Product dense({.expert_rows = {100}, .n = 144, .k = 136, .gated = true});
  const CudaGemmConfig config = ChooseDense(cuda::DescOf(test::TestCall(false), cuda::ProblemOf(dense.Dense()), false));
  ASSERT_TRUE(IsWgmma(config)) << config;
  ASSERT_EQ(cuda::DenseGemm(test::TestCall(false), dense.Dense()), 0);
  dense.Check();
}

}  // namespace
}  // namespace switchyard::ops
