#include "workers/ops/norm/layer_norm.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class LayerNormTest : public OpTest {
 protected:
  LayerNormDesc Desc(int64_t width, double eps = 1e-5) {
    gamma_ = RandomMatrix(dtype(), 1, width, 11);
    beta_ = RandomMatrix(dtype(), 1, width, 12);
    return {.eps = eps, .gamma = gamma_.view().Reshape({width}), .beta = beta_.view().Reshape({width})};
  }
  Tensor gamma_, beta_;
};

TEST_P(LayerNormTest, MatchesReference) {
  for (int64_t width : {1, 8, 24, 64, 100, 2048}) {
    for (DType x_dtype : {acc(), dtype()}) {
      const Tensor x = RandomMatrix(x_dtype, 5, width, 1, 3.0), y(dtype(), {5, width});
      ASSERT_TRUE(LayerNorm(stream(), Desc(width), x, y).ok());
      for (int64_t r = 0; r < 5; ++r) {
        ExpectNear(RowOf(y, r), reference::LayerNorm(RowOf(x, r), RowOf(gamma_, 0), RowOf(beta_, 0), 1e-5),
                   reference::ReductionTolerance(dtype()), "width " + std::to_string(width));
      }
    }
  }
}

// The mean is much larger than the deviations: the mean of squares minus the square of the mean would be noise.
TEST_P(LayerNormTest, OfAFarMean) {
  const Tensor x(acc(), {1, 40}), y(dtype(), {1, 40});
  for (int64_t c = 0; c < 40; ++c) Set(x, 0, c, 16384 + c % 4);
  ASSERT_TRUE(LayerNorm(stream(), Desc(40), x, y).ok());
  ExpectNear(RowOf(y, 0), reference::LayerNorm(RowOf(x, 0), RowOf(gamma_, 0), RowOf(beta_, 0), 1e-5),
             reference::ReductionTolerance(dtype()), "far mean");
}

TEST_P(LayerNormTest, InPlaceInStridedRows) {
  const Tensor fused = RandomMatrix(dtype(), 3, 50, 3), before = Copy(fused);
  const TensorView rows = fused.view().Columns(10, 24);
  ASSERT_TRUE(LayerNorm(stream(), Desc(24), rows, rows).ok());
  for (int64_t r = 0; r < 3; ++r) {
    ExpectNear(RowOf(rows, r),
               reference::LayerNorm(RowOf(before.view().Columns(10, 24), r), RowOf(gamma_, 0), RowOf(beta_, 0), 1e-5),
               reference::ReductionTolerance(dtype()), "row");
    for (int64_t c : {9, 34}) EXPECT_EQ(Get(fused, r, c), Get(before, r, c)) << "outside the view";
  }
}

TEST_P(LayerNormTest, RowsIgnoreCompany) {
  const Tensor x = RandomMatrix(acc(), 512, 136, 5);
  const LayerNormDesc desc = Desc(136);
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y(dtype(), {count, 136});
    EXPECT_TRUE(LayerNorm(stream, desc, x.view().Rows(begin, count), y).ok());
    return y;
  });
}

TEST_P(LayerNormTest, NoRowsIsFineAndMisfitsAreNamed) {
  const Tensor none(dtype(), {0, 16}), wide(dtype(), {2, 17});
  EXPECT_TRUE(LayerNorm(stream(), Desc(16), none, none).ok());
  const absl::Status status = LayerNorm(stream(), Desc(16), wide, wide);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("gamma must be"));
}

SY_INSTANTIATE_OP_TEST(LayerNormTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
