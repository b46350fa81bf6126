#include "workers/ops/norm/rms_norm.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class RmsNormTest : public OpTest {};

TEST_P(RmsNormTest, MatchesReferenceForWholeRows) {
  for (int64_t width : {1, 8, 24, 64, 100, 2048}) {
    for (DType x_dtype : {acc(), dtype()}) {
      const Tensor x = RandomMatrix(x_dtype, 5, width, 1, 3.0), gamma = RandomMatrix(dtype(), 1, width, 2);
      const Tensor y(dtype(), {5, width});
      ASSERT_TRUE(RmsNorm(stream(), {.eps = 1e-5}, x, gamma.view().Reshape({width}), y).ok());
      for (int64_t r = 0; r < 5; ++r) {
        ExpectNear(RowOf(y, r), reference::RmsNorm(RowOf(x, r), RowOf(gamma, 0), 1e-5),
                   reference::ElementwiseTolerance(dtype()), "width " + std::to_string(width));
      }
    }
  }
}

TEST_P(RmsNormTest, NormsEachHeadInPlaceInStridedRows) {
  const Tensor fused = RandomMatrix(dtype(), 3, 100, 3);
  const Tensor before = Copy(fused);
  const Tensor gamma = RandomMatrix(dtype(), 1, 24, 4);
  const TensorView heads = fused.view().Columns(10, 72);
  ASSERT_TRUE(RmsNorm(stream(), {.eps = 1e-6, .head_dim = 24}, heads, gamma.view().Reshape({24}), heads).ok());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t h = 0; h < 3; ++h) {
      const TensorView old = before.view().Columns(10 + h * 24, 24);
      ExpectNear(RowOf(heads.Columns(h * 24, 24), r), reference::RmsNorm(RowOf(old, r), RowOf(gamma, 0), 1e-6),
                 reference::ElementwiseTolerance(dtype()), "head " + std::to_string(h));
    }
    for (int64_t c : {9, 82}) EXPECT_EQ(Get(fused, r, c), Get(before, r, c)) << "outside the view";
  }
}

class RmsNormBf16Test : public OpTest {};

TEST_P(RmsNormBf16Test, RoundsBeforeGammaAsHuggingFaceDoes) {
  // x = (1, 1 + 2^-10), so that the normalised value has bits that bf16 drops before gamma = 3 multiplies.
  const Tensor x(DType::kF32, {1, 2}), gamma(dtype(), {2}), y(dtype(), {1, 2});
  x.data<float>()[0] = 1.0f, x.data<float>()[1] = 1.01f;
  gamma.data<Bf16>()[0] = gamma.data<Bf16>()[1] = Bf16(1.5f);
  ASSERT_TRUE(RmsNorm(stream(), {.eps = 0}, x, gamma, y).ok());
  const float root = std::sqrt((1.0f + 1.01f * 1.01f) / 2);
  const Bf16 inner(1.01f * (1.0f / root));
  EXPECT_EQ(y.data<Bf16>()[1].bits, Bf16(static_cast<float>(inner) * 1.5f).bits);
}

TEST_P(RmsNormBf16Test, RoundsOnceAsGptOssDoes) {
  int differ = 0;
  const Tensor x = RandomMatrix(DType::kF32, 1, 64, 1), gamma = RandomMatrix(dtype(), 1, 64, 2);
  const Tensor once(dtype(), {1, 64}), twice(dtype(), {1, 64}), wide(DType::kF32, {1, 64}), ones(DType::kF32, {64});
  std::fill_n(ones.data<float>(), 64, 1.0f);
  const TensorView gammas = gamma.view().Reshape({64});
  ASSERT_TRUE(RmsNorm(stream(), {.rounds_once = true}, x, gammas, once).ok());
  ASSERT_TRUE(RmsNorm(stream(), {}, x, gammas, twice).ok());
  ASSERT_TRUE(RmsNorm(stream(), {}, x, ones, wide).ok());
  for (int64_t i = 0; i < 64; ++i) {
    const float product = static_cast<float>(gammas.data<Bf16>()[i]) * wide.data<float>()[i];
    EXPECT_EQ(once.data<Bf16>()[i].bits, Bf16(product).bits) << i;
    differ += once.data<Bf16>()[i].bits != twice.data<Bf16>()[i].bits;
  }
  EXPECT_GT(differ, 0);
}

TEST_P(RmsNormTest, RowsIgnoreCompany) {
  const Tensor x = RandomMatrix(acc(), 512, 136, 5), gamma = RandomMatrix(dtype(), 1, 136, 6);
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y(dtype(), {count, 136});
    EXPECT_TRUE(RmsNorm(stream, {}, x.view().Rows(begin, count), gamma.view().Reshape({136}), y).ok());
    return y;
  });
}

TEST_P(RmsNormTest, NoRowsIsFineAndMisfitsAreNamed) {
  const Tensor gamma = RandomMatrix(dtype(), 1, 16, 6), none(dtype(), {0, 16}), wide(dtype(), {2, 17});
  EXPECT_TRUE(RmsNorm(stream(), {}, none, gamma.view().Reshape({16}), none).ok());
  const absl::Status status = RmsNorm(stream(), {}, wide, gamma.view().Reshape({16}), wide);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("gamma must be"));
}

SY_INSTANTIATE_OP_TEST(RmsNormTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(RmsNormBf16Test, {DType::kBf16});

}  // namespace
}  // namespace switchyard::ops
