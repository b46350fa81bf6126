#include "tests/reference/backward_ops.h"
#include "tests/reference/row_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/activation/activation_backward.h"

namespace switchyard::ops {
namespace {

class SwiGluBackwardTest : public OpTest {};
class SwiGluBackwardF64Test : public OpTest {};

TEST_P(SwiGluBackwardTest, MatchesReference) {
  for (int64_t f : {1, 8, 33, 100}) {
    const Tensor sums = RandomMatrix(dtype(), 5, 2 * f, 1, 2.0), dhidden = RandomMatrix(dtype(), 5, f, 2);
    const Tensor dsums(dtype(), {5, 2 * f});
    ASSERT_TRUE(SwiGluBackward(stream(), sums, dhidden, dsums).ok());
    for (int64_t r = 0; r < 5; ++r) {
      ExpectNear(RowOf(dsums, r), reference::SwiGluBackward(RowOf(sums, r), RowOf(dhidden, r)),
                 reference::ElementwiseTolerance(dtype()), "width " + std::to_string(f));
    }
  }
}

TEST_P(SwiGluBackwardTest, InPlaceAndStridedAreTheSame) {
  const Tensor sums = RandomMatrix(dtype(), 7, 66, 1), dhidden = RandomMatrix(dtype(), 7, 40, 2);
  const TensorView d = dhidden.view().Columns(4, 33);
  const Tensor apart(dtype(), {7, 66});
  ASSERT_TRUE(SwiGluBackward(stream(), sums, Copy(d), apart).ok());
  ASSERT_TRUE(SwiGluBackward(stream(), sums, d, sums).ok());
  EXPECT_TRUE(SameBits(sums, 0, apart));
}

// silu' is 1 far to the right and 0 far to the left: nothing overflows on the way.
TEST_P(SwiGluBackwardTest, FarFromZero) {
  const Tensor sums(dtype(), {2, 2}), dhidden(dtype(), {2, 1});
  for (int64_t r = 0; r < 2; ++r) Set(sums, r, 0, r == 0 ? 200 : -200), Set(sums, r, 1, 2), Set(dhidden, r, 0, 3);
  ASSERT_TRUE(SwiGluBackward(stream(), sums, dhidden, sums).ok());
  EXPECT_EQ(Get(sums, 0, 0), 6);
  EXPECT_EQ(Get(sums, 0, 1), 600);
  EXPECT_NEAR(Get(sums, 1, 0), 0, 1e-30);
  EXPECT_NEAR(Get(sums, 1, 1), 0, 1e-30);
}

TEST_P(SwiGluBackwardTest, RowsIgnoreCompany) {
  const Tensor sums = RandomMatrix(dtype(), 512, 2 * 37, 5), dhidden = RandomMatrix(dtype(), 512, 37, 6);
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor d(dtype(), {count, 2 * 37});
    EXPECT_TRUE(SwiGluBackward(stream, sums.view().Rows(begin, count), dhidden.view().Rows(begin, count), d).ok());
    return d;
  });
}

TEST_P(SwiGluBackwardF64Test, IsTheGradientOfSwiGlu) {
  const Tensor sums = RandomMatrix(dtype(), 3, 22, 1), dhidden = RandomMatrix(dtype(), 3, 11, 2);
  const Tensor dsums(dtype(), {3, 22});
  ASSERT_TRUE(SwiGluBackward(stream(), sums, dhidden, dsums).ok());
  ExpectIsGradient(sums, dsums, [&] {
    double sum = 0;
    for (int64_t r = 0; r < 3; ++r) {
      const reference::Vec y =
          reference::SwiGlu(RowOf(sums.view().Columns(0, 11), r), RowOf(sums.view().Columns(11, 11), r));
      for (int64_t c = 0; c < 11; ++c) sum += y[c] * Get(dhidden, r, c);
    }
    return sum;
  });
}

TEST_P(SwiGluBackwardTest, MisfitsAreNamed) {
  const Tensor sums(dtype(), {2, 6}), odd(dtype(), {2, 5}), dhidden(dtype(), {2, 3});
  ExpectNames(SwiGluBackward(stream(), odd, dhidden, sums), "sums must be");
  ExpectNames(SwiGluBackward(stream(), sums, dhidden, odd), "dsums must be");
}

SY_INSTANTIATE_OP_TEST(SwiGluBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(SwiGluBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
