// (That of SwiGLU: swiglu_backward_test.)
#include "workers/ops/activation/activation_backward.h"

#include "tests/reference/backward_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/activation/gelu.h"

namespace switchyard::ops {
namespace {

constexpr Activation kKinds[] = {Activation::kGelu, Activation::kGeluTanh};

class ActivationBackwardTest : public OpTest {};
class ActivationBackwardF64Test : public OpTest {};

TEST_P(ActivationBackwardTest, GeluMatchesReference) {
  const Tensor wide = RandomMatrix(dtype(), 9, 80, 1, 2.0), dhidden = RandomMatrix(dtype(), 9, 77, 2);
  const TensorView sums = wide.view().Columns(2, 77);
  const Tensor dsums(dtype(), {9, 77});
  for (const Activation kind : kKinds) {
    ASSERT_TRUE(ActivationBackward(stream(), kind, sums, dhidden, dsums).ok());
    for (int64_t r = 0; r < 9; ++r) {
      std::vector<double> want;
      for (int64_t c = 0; c < 77; ++c) {
        want.push_back(Get(dhidden, r, c) * reference::GeluSlope(Get(sums, r, c), kind == Activation::kGeluTanh));
      }
      ExpectNear(RowOf(dsums, r), want, reference::ElementwiseTolerance(dtype()), "row " + std::to_string(r));
    }
  }
}

TEST_P(ActivationBackwardTest, SwiGluIsItself) {
  const Tensor sums = RandomMatrix(dtype(), 4, 22, 1), dhidden = RandomMatrix(dtype(), 4, 11, 2);
  const Tensor dsums(dtype(), {4, 22}), want(dtype(), {4, 22});
  ASSERT_TRUE(ActivationBackward(stream(), Activation::kSwiGlu, sums, dhidden, dsums).ok());
  ASSERT_TRUE(SwiGluBackward(stream(), sums, dhidden, want).ok());
  EXPECT_TRUE(SameBits(dsums, 0, want));
}

// The slope is 1 far to the right and 0 far to the left: nothing overflows on the way.  In place.
TEST_P(ActivationBackwardTest, GeluFarFromZero) {
  const double far = dtype() == DType::kF16 ? 6e4 : 1e18;
  for (const Activation kind : kKinds) {
    const Tensor sums(dtype(), {1, 2}), dhidden(dtype(), {1, 2});
    Set(sums, 0, 0, far), Set(sums, 0, 1, -far), Set(dhidden, 0, 0, 3), Set(dhidden, 0, 1, 3);
    ASSERT_TRUE(ActivationBackward(stream(), kind, sums, dhidden, sums).ok());
    EXPECT_EQ(Get(sums, 0, 0), 3);
    EXPECT_EQ(Get(sums, 0, 1), 0);
  }
}

TEST_P(ActivationBackwardTest, RowsIgnoreCompany) {
  const Tensor sums = RandomMatrix(dtype(), 300, 37, 5), dhidden = RandomMatrix(dtype(), 300, 37, 6);
  for (const Activation kind : kKinds) {
    ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
      Tensor d(dtype(), {count, 37});
      EXPECT_TRUE(
          ActivationBackward(stream, kind, sums.view().Rows(begin, count), dhidden.view().Rows(begin, count), d).ok());
      return d;
    });
  }
}

TEST_P(ActivationBackwardF64Test, IsTheGradientOfGelu) {
  const Tensor x = RandomMatrix(dtype(), 3, 11, 1), dy = RandomMatrix(dtype(), 3, 11, 2), y(dtype(), {3, 11});
  const Tensor dx(dtype(), {3, 11});
  for (const Activation kind : kKinds) {
    ASSERT_TRUE(ActivationBackward(stream(), kind, x, dy, dx).ok());
    ExpectIsGradient(x, dx, [&] {
      SY_CHECK_OK(Gelu(stream(), kind, x, y));
      return Dot(y, dy);
    });
  }
}

TEST_P(ActivationBackwardTest, MisfitsAreNamed) {
  const Tensor sums(dtype(), {2, 6}), odd(dtype(), {2, 5});
  ExpectNames(ActivationBackward(stream(), Activation::kGelu, odd, sums, sums), "gelu_backward: sums must be");
  ExpectNames(ActivationBackward(stream(), Activation::kGelu, sums, sums, odd), "dsums must be");
}

SY_INSTANTIATE_OP_TEST(ActivationBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(ActivationBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
