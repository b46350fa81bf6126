#include "workers/ops/norm/rms_norm_backward.h"

#include "tests/reference/backward_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

class RmsNormBackwardTest : public OpTest {
 protected:
  TensorView Gamma(int64_t width) {
    gamma_ = RandomMatrix(dtype(), 1, width, 11);
    return gamma_.view().Reshape({width});
  }
  Tensor gamma_;
};
class RmsNormBackwardF64Test : public RmsNormBackwardTest {};

// Every mixture of dtypes that x, dy and dx may have.  What is left of one element's gradient is small beside its
// terms.
TEST_P(RmsNormBackwardTest, MatchesReference) {
  for (int64_t width : {1, 8, 24, 100, 136}) {
    for (int mixture = 0; mixture < 8; ++mixture) {
      const auto type = [&](int bit) { return mixture >> bit & 1 ? acc() : dtype(); };
      const Tensor x = RandomMatrix(type(0), 70, width, 1, 3.0), dy = RandomMatrix(type(1), 70, width, 2);
      const Tensor dx(type(2), {70, width}), dgamma = RandomMatrix(acc(), 1, width, 3), before = Copy(dgamma);
      const TensorView gamma = Gamma(width);
      ASSERT_TRUE(
          RmsNormBackward(stream(), {.eps = 0.5, .dgamma = dgamma.view().Reshape({width})}, x, gamma, dy, dx).ok());
      std::vector<double> sums = RowOf(before, 0);
      for (int64_t r = 0; r < 70; ++r) {
        const reference::NormGradients want =
            reference::RmsNormBackward(RowOf(x, r), RowOf(gamma_, 0), 0.5, RowOf(dy, r));
        ExpectNearAtScale(RowOf(dx, r), want.dx, 0.1, reference::ReductionTolerance(dx.dtype()),
                          "width " + std::to_string(width));
        for (int64_t j = 0; j < width; ++j) sums[j] += want.dgamma[j];
      }
      ExpectNear(RowOf(dgamma, 0), sums, reference::ReductionTolerance(dtype()), "dgamma");
    }
  }
}

TEST_P(RmsNormBackwardTest, OfHeadsInPlaceInStridedRows) {
  const Tensor fused = RandomMatrix(dtype(), 3, 100, 3), d = RandomMatrix(dtype(), 3, 100, 4), before = Copy(d);
  const TensorView gamma = Gamma(24), heads = d.view().Columns(10, 72);
  const Tensor dgamma = Tensor::Zeros(acc(), {24});
  ASSERT_TRUE(RmsNormBackward(stream(), {.eps = 1e-6, .head_dim = 24, .dgamma = dgamma}, fused.view().Columns(10, 72),
                              gamma, heads, heads)
                  .ok());
  std::vector<double> sums(24);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t h = 0; h < 3; ++h) {
      const int64_t column = 10 + h * 24;
      const reference::NormGradients want =
          reference::RmsNormBackward(RowOf(fused.view().Columns(column, 24), r), RowOf(gamma_, 0), 1e-6,
                                     RowOf(before.view().Columns(column, 24), r));
      ExpectNear(RowOf(d.view().Columns(column, 24), r), want.dx, reference::ReductionTolerance(dtype()), "head");
      for (int64_t j = 0; j < 24; ++j) sums[j] += want.dgamma[j];
    }
    for (int64_t c : {9, 82}) EXPECT_EQ(Get(d, r, c), Get(before, r, c)) << "outside the view";
  }
  ExpectNear(RowOf(dgamma.view().Reshape({1, 24}), 0), sums, reference::ReductionTolerance(dtype()), "dgamma");
}

TEST_P(RmsNormBackwardTest, AddsToTheResidualsGradient) {
  const Tensor x = RandomMatrix(acc(), 5, 40, 1), dy = RandomMatrix(dtype(), 5, 40, 2), fresh(acc(), {5, 40});
  const Tensor sum = RandomMatrix(acc(), 5, 40, 3), before = Copy(sum);
  const TensorView gamma = Gamma(40);
  ASSERT_TRUE(RmsNormBackward(stream(), {}, x, gamma, dy, fresh).ok());
  ASSERT_TRUE(RmsNormBackward(stream(), {.accumulate = true}, x, gamma, dy, sum).ok());
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t c = 0; c < 40; ++c) {
      const double both = Get(before, r, c) + Get(fresh, r, c);
      ASSERT_NEAR(Get(sum, r, c), both,
                  acc() == DType::kF64 ? 1e-15 * (1 + std::abs(both)) : 1e-6 * (1 + std::abs(both)));
    }
  }
}

TEST_P(RmsNormBackwardTest, RowsIgnoreCompany) {
  const Tensor x = RandomMatrix(acc(), 512, 136, 5), dy = RandomMatrix(dtype(), 512, 136, 6);
  const TensorView gamma = Gamma(136);
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor dx(acc(), {count, 136});
    const Tensor dgamma = Tensor::Zeros(acc(), {136});
    EXPECT_TRUE(RmsNormBackward(stream, {.dgamma = dgamma}, x.view().Rows(begin, count), gamma,
                                dy.view().Rows(begin, count), dx)
                    .ok());
    return dx;
  });
}

TEST_P(RmsNormBackwardTest, ThreadsDoNotMatterToSums) {
  const Tensor x = RandomMatrix(acc(), 300, 72, 5), dy = RandomMatrix(dtype(), 300, 72, 6), dx(acc(), {300, 72});
  for (int64_t head_dim : {0, 24}) {
    const int64_t width = head_dim > 0 ? head_dim : 72;
    const TensorView gamma = Gamma(width);
    ExpectThreadsDoNotMatter([&](const Stream& stream) {
      Tensor dgamma = Tensor::Zeros(acc(), {width});
      EXPECT_TRUE(RmsNormBackward(stream, {.head_dim = head_dim, .dgamma = dgamma}, x, gamma, dy, dx).ok());
      return dgamma;
    });
  }
}

TEST_P(RmsNormBackwardF64Test, IsTheGradientOfRmsNorm) {
  const Tensor x = RandomMatrix(dtype(), 3, 22, 1), dy = RandomMatrix(dtype(), 3, 22, 2), y(dtype(), {3, 22});
  for (int64_t head_dim : {0, 11}) {
    const int64_t width = head_dim > 0 ? head_dim : 22;
    const TensorView gamma = Gamma(width);
    const Tensor dx(dtype(), {3, 22}), dgamma = Tensor::Zeros(dtype(), {1, width});
    ASSERT_TRUE(RmsNormBackward(stream(), {.eps = 1e-3, .head_dim = head_dim, .dgamma = dgamma.view().Reshape({width})},
                                x, gamma, dy, dx)
                    .ok());
    const auto loss = [&] {
      SY_CHECK_OK(RmsNorm(stream(), {.eps = 1e-3, .head_dim = head_dim}, x, gamma, y));
      return Dot(y, dy);
    };
    ExpectIsGradient(x, dx, loss);
    ExpectIsGradient(gamma_, dgamma, loss);
  }
}

TEST_P(RmsNormBackwardTest, MisfitsAreNamed) {
  const Tensor x(acc(), {2, 16}), dy(dtype(), {2, 16}), wide(acc(), {2, 17}), dgamma(acc(), {15});
  const TensorView gamma = Gamma(16);
  ExpectNames(RmsNormBackward(stream(), {}, wide, gamma, dy, x), "x must be");
  ExpectNames(RmsNormBackward(stream(), {}, x, gamma, dy, wide), "dx must be");
  ExpectNames(RmsNormBackward(stream(), {.dgamma = dgamma}, x, gamma, dy, x), "dgamma must be");
  ExpectNames(RmsNormBackward(stream(), {.head_dim = 5}, x, gamma, dy, x), "multiple of head_dim 5");
  ExpectNames(RmsNormBackward(stream(), {.head_dim = 8}, x, gamma, dy, x), "gamma must be");
}

SY_INSTANTIATE_OP_TEST(RmsNormBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(RmsNormBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
