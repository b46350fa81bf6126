#include "workers/ops/norm/layer_norm_backward.h"

#include "tests/reference/backward_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/norm/layer_norm.h"

namespace switchyard::ops {
namespace {

class LayerNormBackwardTest : public OpTest {
 protected:
  LayerNormBackwardDesc Desc(int64_t width, double eps) {
    gamma_ = RandomMatrix(dtype(), 1, width, 11);
    dgamma_ = RandomMatrix(acc(), 1, width, 12);
    dbeta_ = RandomMatrix(acc(), 1, width, 13);
    return {.eps = eps,
            .gamma = gamma_.view().Reshape({width}),
            .dgamma = dgamma_.view().Reshape({width}),
            .dbeta = dbeta_.view().Reshape({width})};
  }
  Tensor gamma_, dgamma_, dbeta_;
};
class LayerNormBackwardF64Test : public LayerNormBackwardTest {};

// Every mixture of dtypes that x, dy and dx may have.
TEST_P(LayerNormBackwardTest, MatchesReference) {
  for (int64_t width : {1, 8, 24, 100, 136}) {
    for (int mixture = 0; mixture < 8; ++mixture) {
      const auto type = [&](int bit) { return mixture >> bit & 1 ? acc() : dtype(); };
      const Tensor x = RandomMatrix(type(0), 70, width, 1, 3.0), dy = RandomMatrix(type(1), 70, width, 2);
      const Tensor dx(type(2), {70, width});
      const LayerNormBackwardDesc desc = Desc(width, 0.5);
      std::vector<double> gammas = RowOf(dgamma_, 0), betas = RowOf(dbeta_, 0);
      ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, dx).ok());
      for (int64_t r = 0; r < 70; ++r) {
        const reference::LayerNormGradients want =
            reference::LayerNormBackward(RowOf(x, r), RowOf(gamma_, 0), 0.5, RowOf(dy, r));
        ExpectNearAtScale(RowOf(dx, r), want.dx, 0.3, reference::ReductionTolerance(dx.dtype()),
                          "width " + std::to_string(width));
        for (int64_t j = 0; j < width; ++j) gammas[j] += want.dgamma[j], betas[j] += Get(dy, r, j);
      }
      ExpectNearAtScale(RowOf(dgamma_, 0), gammas, 3, reference::ReductionTolerance(acc()), "dgamma");
      ExpectNearAtScale(RowOf(dbeta_, 0), betas, 3, reference::ReductionTolerance(acc()), "dbeta");
    }
  }
}

TEST_P(LayerNormBackwardTest, AddsToTheResidualsGradient) {
  const Tensor x = RandomMatrix(acc(), 5, 40, 1), dy = RandomMatrix(dtype(), 5, 40, 2), fresh(acc(), {5, 40});
  const Tensor sum = RandomMatrix(acc(), 5, 40, 3), before = Copy(sum);
  LayerNormBackwardDesc desc = Desc(40, 1e-5);
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, fresh).ok());
  desc.accumulate = true;
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, sum).ok());
  for (int64_t r = 0; r < 5; ++r) {
    std::vector<double> want = RowOf(before, r);
    for (int64_t c = 0; c < 40; ++c) want[c] += Get(fresh, r, c);
    ExpectNear(RowOf(sum, r), want, reference::ElementwiseTolerance(acc()), "sum");
  }
}

// dx may take dy's place, and dbeta is still dy's sum.
TEST_P(LayerNormBackwardTest, InPlace) {
  const Tensor x = RandomMatrix(acc(), 5, 40, 1), dy = RandomMatrix(dtype(), 5, 40, 2), apart(dtype(), {5, 40});
  const LayerNormBackwardDesc desc = Desc(40, 1e-5);
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, apart).ok());
  const Tensor dgamma = Copy(dgamma_), dbeta = Copy(dbeta_);
  ASSERT_TRUE(LayerNormBackward(stream(), Desc(40, 1e-5), x, dy, dy).ok());
  EXPECT_TRUE(SameBits(dy, 0, apart));
  EXPECT_TRUE(SameBits(dgamma_, 0, dgamma));
  EXPECT_TRUE(SameBits(dbeta_, 0, dbeta));
}

TEST_P(LayerNormBackwardTest, RowsIgnoreCompanyAndThreadsDoNotMatter) {
  const Tensor x = RandomMatrix(acc(), 300, 40, 5), dy = RandomMatrix(dtype(), 300, 40, 6);
  const LayerNormBackwardDesc desc = Desc(40, 1e-5);
  ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor dx(dtype(), {count, 40});
    EXPECT_TRUE(LayerNormBackward(stream, desc, x.view().Rows(begin, count), dy.view().Rows(begin, count), dx).ok());
    return dx;
  });
  for (const bool of_gamma : {true, false}) {
    ExpectThreadsDoNotMatter([&](const Stream& stream) {
      const Tensor dx(dtype(), {300, 40});
      EXPECT_TRUE(LayerNormBackward(stream, Desc(40, 1e-5), x, dy, dx).ok());
      return Copy(of_gamma ? dgamma_ : dbeta_);
    });
  }
}

TEST_P(LayerNormBackwardF64Test, IsTheGradientOfLayerNorm) {
  const Tensor x = RandomMatrix(dtype(), 3, 11, 1), dy = RandomMatrix(dtype(), 3, 11, 2), y(dtype(), {3, 11});
  const Tensor dx(dtype(), {3, 11}), beta = RandomMatrix(dtype(), 1, 11, 3);
  const LayerNormBackwardDesc desc = Desc(11, 0.1);
  for (const Tensor* sum : {&dgamma_, &dbeta_}) std::memset(sum->view().raw(), 0, sum->bytes());
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, dx).ok());
  const auto loss = [&] {
    SY_CHECK_OK(LayerNorm(stream(), {.eps = 0.1, .gamma = desc.gamma, .beta = beta.view().Reshape({11})}, x, y));
    return Dot(y, dy);
  };
  ExpectIsGradient(x, dx, loss);
  ExpectIsGradient(gamma_, dgamma_, loss);
  ExpectIsGradient(beta, dbeta_, loss);
}

// Of what is frozen none is computed, and the rest has the same bits.
TEST_P(LayerNormBackwardTest, SumsThatAreNotWanted) {
  const Tensor x = RandomMatrix(dtype(), 70, 9, 1), dy = RandomMatrix(dtype(), 70, 9, 2);
  const Tensor dx(dtype(), {70, 9}), other(dtype(), {70, 9});
  LayerNormBackwardDesc desc = Desc(9, 1e-5);
  const Tensor before = Copy(dgamma_);
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, dx).ok());
  const Tensor after = Copy(dgamma_);
  EXPECT_FALSE(SameBits(after, 0, before));
  desc.dgamma = desc.dbeta = TensorView();
  ASSERT_TRUE(LayerNormBackward(stream(), desc, x, dy, other).ok());
  EXPECT_TRUE(SameBits(other, 0, dx));
  EXPECT_TRUE(SameBits(dgamma_, 0, after));
}

TEST_P(LayerNormBackwardTest, MisfitsAreNamed) {
  const Tensor x(dtype(), {2, 8}), narrow(dtype(), {2, 7});
  ExpectNames(LayerNormBackward(stream(), Desc(8, 1e-5), narrow, x, x), "x must be");
  ExpectNames(LayerNormBackward(stream(), Desc(7, 1e-5), x, x, x), "gamma must be");
  LayerNormBackwardDesc desc = Desc(8, 1e-5);
  desc.dbeta = desc.dbeta.Rows(0, 7);
  ExpectNames(LayerNormBackward(stream(), desc, x, x, x), "dbeta must be");
}

SY_INSTANTIATE_OP_TEST(LayerNormBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(LayerNormBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
