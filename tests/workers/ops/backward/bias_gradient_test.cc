#include "workers/ops/activation/bias_gradient.h"

#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

class BiasGradientTest : public OpTest {};

TEST_P(BiasGradientTest, MatchesReference) {
  for (int64_t rows : {0, 1, 64, 65, 200}) {
    const Tensor dy = RandomMatrix(dtype(), rows, 45, 1), gradient = RandomMatrix(acc(), 1, 37, 2),
                 before = Copy(gradient);
    const TensorView part = dy.view().Columns(4, 37);
    ASSERT_TRUE(BiasGradient(stream(), part, gradient.view().Reshape({37})).ok());
    std::vector<double> want = RowOf(before, 0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < 37; ++j) want[j] += Get(part, r, j);
    }
    ExpectNear(RowOf(gradient, 0), want, reference::ReductionTolerance(acc()), std::to_string(rows) + " rows");
  }
}

TEST_P(BiasGradientTest, ThreadsDoNotMatter) {
  const Tensor dy = RandomMatrix(dtype(), 300, 72, 6);
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    Tensor gradient = Tensor::Zeros(acc(), {72});
    EXPECT_TRUE(BiasGradient(stream, dy, gradient).ok());
    return gradient;
  });
}

TEST_P(BiasGradientTest, MisfitsAreNamed) {
  const Tensor dy(dtype(), {2, 16}), narrow(acc(), {15}), wrong(DType::kI32, {16});
  ExpectNames(BiasGradient(stream(), dy, narrow), "gradient must be");
  ExpectNames(BiasGradient(stream(), dy, wrong), "gradient must be");
}

SY_INSTANTIATE_OP_TEST(BiasGradientTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
