// The ops that treat every element by itself: embedding, clamp; and the kernels' exponential.
#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/ops/activation/clamp.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/embedding/embedding.h"

namespace switchyard::ops {
namespace {

class ElementwiseTest : public OpTest {};

TEST_P(ElementwiseTest, EmbeddingWidensRowsExactly) {
  const Tensor table = RandomMatrix(dtype(), 11, 37, 1), residual(acc(), {4, 37});
  ASSERT_TRUE(Embed(stream(), table, {10, 0, 3, 3}, residual).ok());
  const std::vector<int64_t> tokens = {10, 0, 3, 3};
  for (int64_t t = 0; t < 4; ++t) EXPECT_EQ(RowOf(residual, t), RowOf(table, tokens[t]));
  EXPECT_EQ(Embed(stream(), table, {1, 11, 0, 0}, residual).message(), "embedding: tokens[1] = 11 is outside [0, 11)");
}

TEST_P(ElementwiseTest, AddedEmbeddingsAreWidenedExactly) {
  const Tensor table = RandomMatrix(dtype(), 11, 37, 1), residual = RandomMatrix(acc(), 4, 37, 2);
  const Tensor before = Copy(residual);
  const std::vector<int32_t> rows = {10, 0, 3, 3};
  ASSERT_TRUE(AddEmbedding(stream(), table, rows, residual).ok());
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t c = 0; c < 37; ++c) {
      const double sum = Get(before, t, c) + Get(table, rows[t], c);
      EXPECT_EQ(Get(residual, t, c), acc() == DType::kF64 ? sum : static_cast<float>(sum));
    }
  }
  EXPECT_EQ(AddEmbedding(stream(), table, {1, 11, 0, 0}, residual).message(),
            "add_embedding: tokens[1] = 11 is outside [0, 11)");
}

TEST_P(ElementwiseTest, EmbeddingAndClampRowsIgnoreCompany) {
  const Tensor table = RandomMatrix(dtype(), 300, 56, 5);
  std::vector<int32_t> tokens(512);
  for (int i = 0; i < 512; ++i) tokens[i] = i * 7 % 300;
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor residual(acc(), {count, 56});
    EXPECT_TRUE(Embed(stream, table, absl::MakeSpan(tokens).subspan(begin, count), residual).ok());
    return residual;
  });
  ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y = Copy(table.view().Rows(begin, count));
    EXPECT_TRUE(Clamp(stream, 0.5, y).ok());
    return y;
  });
}

TEST_P(ElementwiseTest, ClampKeepsNanAndItsView) {
  const Tensor x = RandomMatrix(dtype(), 3, 20, 4, 10.0);
  Set(x, 1, 5, std::nan(""));
  Set(x, 0, 4, 100), Set(x, 0, 16, 100);
  const Tensor before = Copy(x);
  ASSERT_TRUE(Clamp(stream(), 8.0, x.view().Columns(4, 12)).ok());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 20; ++c) {
      const double old = Get(before, r, c), now = Get(x, r, c);
      if (std::isnan(old)) {
        EXPECT_TRUE(std::isnan(now));
      } else {
        EXPECT_EQ(now, c >= 4 && c < 16 ? std::clamp(old, -8.0, 8.0) : old) << r << "," << c;
      }
    }
  }
  EXPECT_FALSE(Clamp(stream(), 0.0, x).ok());
}

TEST_P(ElementwiseTest, NoRowsIsFine) {
  const Tensor none(dtype(), {0, 8}), residual(acc(), {0, 8}), table(dtype(), {4, 8});
  EXPECT_TRUE(Clamp(stream(), 1.0, none).ok());
  EXPECT_TRUE(Embed(stream(), table, {}, residual).ok());
}

// fp32; for fp64 the kernels take libm's.
class ExpTest : public OpTest {};

TEST_P(ExpTest, IsWithinTwoUlp) {
  std::vector<float> x, y;
  for (double v = -87.3; v < 88.72; v += 0.00037) x.push_back(static_cast<float>(v));
  y.resize(x.size());
  CpuKernels().exp_sum(/*dtype=*/0, x.data(), static_cast<int64_t>(x.size()), 0.0, 1.0, y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const float rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, INFINITY)) - rounded;
    worst = std::max(worst, std::abs(y[i] - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);

  const std::vector<float> special = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -88.0f, 89.0f, -1e30f, 1e30f};
  std::vector<float> at(special.size());
  CpuKernels().exp_sum(/*dtype=*/0, special.data(), static_cast<int64_t>(special.size()), 0.0, 1.0, at.data());
  EXPECT_EQ(at[0], 1.0f);
  EXPECT_EQ(at[1], 1.0f);
  EXPECT_EQ(at[2], 0.0f);
  EXPECT_EQ(at[3], INFINITY);
  EXPECT_TRUE(std::isnan(at[4]));
  EXPECT_EQ(at[5], 0.0f);
  EXPECT_EQ(at[6], INFINITY);
  EXPECT_EQ(at[7], 0.0f);
  EXPECT_EQ(at[8], INFINITY);
}

SY_INSTANTIATE_OP_TEST(ElementwiseTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(ExpTest, {DType::kF32});

}  // namespace
}  // namespace switchyard::ops
