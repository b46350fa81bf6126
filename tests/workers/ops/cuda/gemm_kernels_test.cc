// The CUDA kernels of our own for matrix products against double precision: every dtype, every tile, rows spread over
// experts in any way.
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

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16};

CudaGemmConfig WithTile(int tile, int64_t grid) { return {.kind = CudaGemmKind::kTiles, .tile = tile, .grid = grid}; }

class GroupedGemmTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SkipWithoutGpu(); }

  static void Run(const test::ProductCase& c) {
    for (bool deterministic : {false, true}) {
      test::Product product(c);
      ASSERT_EQ(cuda::GroupedGemm(test::TestCall(deterministic), product.Grouped()), 0) << c;
      product.Check();
    }
  }
};

TEST_P(GroupedGemmTest, AnyRowsPerExpert) {
  const std::vector<int64_t> rows_of[] = {{1},
                                          {0, 0, 3},
                                          {5, 0, 0, 17, 1},
                                          {0, 60, 0},
                                          {8, 8, 8, 8},
                                          {130, 0, 1, 2},
                                          {0, 0, 0, 0},
                                          {3, 0, 40, 9, 0, 1},
                                          {20, 20},
                                          {0, 0, 0, 0, 64},
                                          std::vector<int64_t>(40, 1)};
  int variant = 0;
  for (const std::vector<int64_t>& rows : rows_of) {
    ++variant;
    Run({.dtype = GetParam(),
         .y_dtype = variant % 3 == 0 ? AccDType(GetParam()) : GetParam(),
         .expert_rows = rows,
         .n = variant % 2 == 0 ? 72 : 34,
         .k = variant % 4 == 0 ? 136 : 24,
         .gated = variant % 5 < 2,
         .gather = variant % 2 == 1,
         .x_stride_extra = variant % 4 == 1 ? 1 : 0,
         .y_stride_extra = variant % 3});
    if (HasFailure()) return;
  }
}

// More experts than a warp has threads: the sums over experts go on from one round to the next.
TEST_P(GroupedGemmTest, ManyExperts) {
  std::vector<int64_t> rows(70, 0);
  rows[0] = 1, rows[31] = 9, rows[32] = 2, rows[33] = 0, rows[64] = 17, rows[69] = 3;
  Run({.dtype = GetParam(), .y_dtype = GetParam(), .expert_rows = rows, .n = 24, .k = 16, .gather = true});
}

INSTANTIATE_TEST_SUITE_P(DTypes, GroupedGemmTest, testing::ValuesIn(kDTypes),
                         [](const auto& param) { return DTypeName(param.param); });

// Every tile of the tensor-core kernel, asked for by name.
class GemmTileTest : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void SetUp() override {
    SkipWithoutGpu();
    if (NumGpus() > 0 && !test::DeviceTakesTile(tile(), 5)) GTEST_SKIP() << "no Hopper, or less shared memory";
  }

  int tile() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(GemmTileTest, MatchesReference) {
  const test::ProductCase base = {.dtype = dtype(), .y_dtype = dtype()};
  test::ProductCase plain = base, gated = base, deep = base;
  plain.expert_rows = {0, 7, 0, 70, 1}, plain.n = 150, plain.k = 72;
  gated.expert_rows = {9, 0, 33}, gated.n = 180, gated.k = 40, gated.gated = true, gated.gather = true;
  deep.expert_rows = {11}, deep.n = 17, deep.k = 2184, deep.y_dtype = DType::kF32;  // around all stages, and again
  for (const test::ProductCase& c : {plain, gated, deep}) {
    for (int64_t grid : {1, 5}) {
      test::Product product(c);
      ASSERT_EQ(cuda::LaunchGemm(test::TestCall(false), cuda::ProblemOf(product.Grouped()), WithTile(tile(), grid)), 0);
      product.Check();
    }
  }
}

// x with rows anywhere: read element by element.
TEST_P(GemmTileTest, UnalignedRows) {
  test::Product product({.dtype = dtype(),
                         .y_dtype = dtype(),
                         .expert_rows = {3, 20},
                         .n = 70,
                         .k = 136,
                         .gather = true,
                         .x_stride_extra = 5,
                         .y_stride_extra = 1});
  ASSERT_EQ(cuda::LaunchGemm(test::TestCall(false), cuda::ProblemOf(product.Grouped()), WithTile(tile(), 3)), 0);
  product.Check();
}

std::string TileCaseName(const testing::TestParamInfo<std::tuple<int, DType>>& param) {
  return absl::StrCat(kCudaGemmTiles[std::get<0>(param.param)].name, "_", DTypeName(std::get<1>(param.param)));
}
INSTANTIATE_TEST_SUITE_P(Tiles, GemmTileTest,
                         testing::Combine(testing::Range(0, kNumCudaGemmTiles),
                                          testing::Values(DType::kBf16, DType::kF16)),
                         TileCaseName);

}  // namespace
}  // namespace switchyard::ops
