// Batch invariance of matrix products: a row's bits do not depend on the number of rows, the other rows, chunks or
// threads, nor on whether rows are gathered or contiguous, dense or of experts; in every format of weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/grouped_gemm.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kRows = 512;
constexpr int64_t kN = 70;  // two whole panels and a part
constexpr int64_t kK = 97;  // not a multiple of a pair, a tile or a cache line

class GemmSamenessTest : public testing::TestWithParam<GemmFormatCase> {
 protected:
  GemmSamenessTest()
      : x_(RandomMatrix(GetParam().dtype, kRows, kK, 1)),
        w_(Pack(RandomMatrix(GetParam().dtype, kN, kK, 2))),
        gated_(Pack(RandomMatrix(GetParam().dtype, 2 * kN, kK, 3), WeightLayout::kGatedPanels)),
        bias_(RandomMatrix(GetParam().dtype, 1, kN, 4)) {}

  Weight Pack(const TensorView& rows, WeightLayout layout = WeightLayout::kPanels) const {
    return Packed(stream_, rows, layout, GetParam().format);
  }
  Tensor Plain(const Stream& stream, const TensorView& x) const {
    Tensor y(GetParam().dtype, {x.dim(0), kN});
    SY_CHECK_OK(Gemm(stream, {.isa = GetParam().isa}, x, w_, bias_.view().Reshape({kN}), y));
    return y;
  }
  Tensor Gated(const Stream& stream, const TensorView& x) const {
    Tensor y(GetParam().dtype, {x.dim(0), kN});
    SY_CHECK_OK(GatedGemm(stream, x, gated_, y, GetParam().isa));
    return y;
  }
  Tensor Accumulated(const Stream& stream, const TensorView& x, const TensorView& start) const {
    Tensor y(start.dtype(), {x.dim(0), kN});
    std::memcpy(y.view().raw(), start.raw(), y.bytes());
    SY_CHECK_OK(Gemm(stream, {.accumulate = true, .isa = GetParam().isa}, x, w_, TensorView(), y));
    return y;
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
  const Tensor x_;
  const Weight w_, gated_;
  const Tensor bias_;
};

TEST_P(GemmSamenessTest, AnyNumberOfRowsIsEachRowAlone) {
  const Tensor start = RandomMatrix(AccDType(GetParam().dtype), kRows, kN, 9);
  std::vector<Tensor> plain, gated, accumulated;  // row by row
  for (int64_t i = 0; i < kRows; ++i) {
    plain.push_back(Plain(stream_, x_.view().Rows(i, 1)));
    gated.push_back(Gated(stream_, x_.view().Rows(i, 1)));
    accumulated.push_back(Accumulated(stream_, x_.view().Rows(i, 1), start.view().Rows(i, 1)));
  }
  for (int64_t m : {1,  2,  3,  4,  5,  6,  7,  8,  11, 12, 13, 15,  16,  17, 23,
                    24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 200, 512}) {
    for (int64_t first : {int64_t{0}, (kRows - m) / 2, kRows - m}) {
      const TensorView x = x_.view().Rows(first, m);
      const Tensor some = Plain(stream_, x), some_gated = Gated(stream_, x);
      const Tensor some_accumulated = Accumulated(stream_, x, start.view().Rows(first, m));
      for (int64_t i = 0; i < m; ++i) {
        ASSERT_TRUE(SameRow(some, i, plain[first + i], 0)) << "row " << i << " of " << m << " from " << first;
        ASSERT_TRUE(SameRow(some_gated, i, gated[first + i], 0)) << "row " << i << " of " << m << " from " << first;
        ASSERT_TRUE(SameRow(some_accumulated, i, accumulated[first + i], 0)) << "row " << i << " of " << m;
      }
    }
  }
}

// Every M from 1 to 512, at a shape that is cheap and still a panel and a part, an odd depth, several of any tile's
// rows: the plain product, the gated one and the accumulating one.  The slow kernels of few bits without AVX, whose
// blocks have 4 rows: every M to 64, then some.
TEST_P(GemmSamenessTest, EveryNumberOfRowsUpTo512) {
  const auto [isa, dtype, format] = GetParam();
  constexpr int64_t kSmallN = 37, kSmallK = 35;
  const Tensor x = RandomMatrix(dtype, kRows, kSmallK, 1), start = RandomMatrix(AccDType(dtype), kRows, kSmallN, 9);
  const Weight w = Pack(RandomMatrix(dtype, kSmallN, kSmallK, 2));
  const Weight gated = Pack(RandomMatrix(dtype, 2 * kSmallN, kSmallK, 3), WeightLayout::kGatedPanels);
  const auto run = [&, isa = isa, dtype = dtype](int64_t first, int64_t m) {
    const TensorView rows = x.view().Rows(first, m);
    std::vector<Tensor> out;
    for (const DType type : {dtype, dtype, start.dtype()}) out.emplace_back(type, Shape{m, kSmallN});
    SY_CHECK_OK(Gemm(stream_, {.isa = isa}, rows, w, TensorView(), out[0]));
    SY_CHECK_OK(GatedGemm(stream_, rows, gated, out[1], isa));
    std::memcpy(out[2].view().raw(), start.view().Rows(first, m).raw(), out[2].bytes());
    SY_CHECK_OK(Gemm(stream_, {.accumulate = true, .isa = isa}, rows, w, TensorView(), out[2]));
    return out;
  };
  std::vector<std::vector<Tensor>> alone;
  for (int64_t i = 0; i < kRows; ++i) alone.push_back(run(i, 1));
  const bool slow = isa == Isa::kScalar && format != WeightFormat::kPlain;
  for (int64_t m = 1; m <= kRows; m += slow && m >= 64 ? 29 : 1) {
    const int64_t first = m * 37 % (kRows - m + 1);
    const std::vector<Tensor> together = run(first, m);
    for (size_t kind = 0; kind < together.size(); ++kind) {
      for (int64_t i = 0; i < m; ++i) {
        ASSERT_TRUE(SameRow(together[kind], i, alone[first + i][kind], 0))
            << "row " << i << " of " << m << " from " << first << ", kind " << kind;
      }
    }
  }
}

TEST_P(GemmSamenessTest, ThreadsAndStridesDoNotMatter) {
  const Tensor want = Plain(stream_, x_), want_gated = Gated(stream_, x_);
  // The same rows as columns [3, 3 + K) of a wider matrix.
  Tensor wide = RandomMatrix(GetParam().dtype, kRows, kK + 10, 7);
  for (int64_t i = 0; i < kRows; ++i) {
    std::memcpy(wide.view().Columns(3, kK).Rows(i, 1).raw(), x_.view().Rows(i, 1).raw(), kK * DTypeBytes(wide.dtype()));
  }
  for (int threads : {2, 3, 4}) {
    ThreadPool pool(threads, /*spin=*/false);
    const Stream stream = Stream::OnCpu(&pool);
    for (const TensorView& x : {x_.view(), wide.view().Columns(3, kK)}) {
      const Tensor y = Plain(stream, x), y_gated = Gated(stream, x);
      ASSERT_EQ(std::memcmp(y.view().raw(), want.view().raw(), y.bytes()), 0) << threads;
      ASSERT_EQ(std::memcmp(y_gated.view().raw(), want_gated.view().raw(), y.bytes()), 0) << threads;
    }
  }
}

// Rows picked at random, some twice: gathered, then divided among experts, some without rows.
TEST_P(GemmSamenessTest, GroupsAreTheirExpertsAlone) {
  constexpr int kExperts = 5;
  std::vector<Weight> owned;
  std::vector<const Weight*> plain, gated;
  for (int e = 0; e < kExperts; ++e) {
    owned.push_back(Pack(RandomMatrix(GetParam().dtype, kN, kK, 20 + e)));
    owned.push_back(Pack(RandomMatrix(GetParam().dtype, 2 * kN, kK, 40 + e), WeightLayout::kGatedPanels));
  }
  for (int e = 0; e < kExperts; ++e) plain.push_back(&owned[2 * e]), gated.push_back(&owned[2 * e + 1]);
  std::mt19937 rng(5);
  ThreadPool pool(3, /*spin=*/false);
  const Stream stream = Stream::OnCpu(&pool);
  const std::vector<std::vector<int32_t>> splits = {{0, 0, 300, 300, 300, 300}, {0, 1, 2, 3, 4, 5},
                                                    {0, 0, 0, 0, 0, 40},        {0, 17, 17, 50, 83, 100},
                                                    {0, 0, 0, 0, 0, 0},         {0, 2, 15, 28, 60, 61}};
  for (const std::vector<int32_t>& offsets : splits) {
    const int64_t rows = offsets.back();
    std::vector<int32_t> pick(rows);
    for (int32_t& row : pick) row = static_cast<int32_t>(rng() % kRows);
    const GroupedGemmDesc desc = {.x_rows = pick, .isa = GetParam().isa};
    const Tensor y(GetParam().dtype, {rows, kN}), hidden(GetParam().dtype, {rows, kN});
    ASSERT_TRUE(GroupedGemm(stream, desc, x_, plain, offsets, y).ok());
    ASSERT_TRUE(GroupedGatedGemm(stream, desc, x_, gated, offsets, hidden).ok());
    for (int e = 0; e < kExperts; ++e) {
      for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const TensorView x = x_.view().Rows(pick[i], 1);
        const Tensor alone(GetParam().dtype, {1, kN});
        ASSERT_TRUE(Gemm(stream_, {.isa = GetParam().isa}, x, *plain[e], TensorView(), alone).ok());
        ASSERT_TRUE(SameRow(y, i, alone, 0)) << "row " << i << " of expert " << e;
        ASSERT_TRUE(GatedGemm(stream_, x, *gated[e], alone, GetParam().isa).ok());
        ASSERT_TRUE(SameRow(hidden, i, alone, 0)) << "row " << i << " of expert " << e;
      }
    }
  }
}

// Deep enough that rows are cut into several tasks.
TEST_P(GemmSamenessTest, RowPartsDoNotMatter) {
  const auto [isa, dtype, format] = GetParam();
  const Tensor x = RandomMatrix(dtype, 150, 4300, 1);
  const Weight w = Pack(RandomMatrix(dtype, 40, 4300, 2));
  const GemmConfig config = ChooseGemm({.m = 150, .n = 40, .k = 4300, .dtype = dtype, .format = format, .isa = isa});
  ASSERT_LT(config.rows_per_task, 150);
  ThreadPool pool(2, /*spin=*/false);
  const Tensor all(dtype, {150, 40}), one(dtype, {1, 40});
  ASSERT_TRUE(Gemm(Stream::OnCpu(&pool), {.isa = isa}, x, w, TensorView(), all).ok());
  for (int64_t i : {0, 1, 47, 95, 96, 97, 149}) {
    ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x.view().Rows(i, 1), w, TensorView(), one).ok());
    ASSERT_TRUE(SameRow(all, i, one, 0)) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmSamenessTest, testing::ValuesIn(AllGemmFormatCases()), FormatCaseName);

}  // namespace
}  // namespace switchyard::ops
