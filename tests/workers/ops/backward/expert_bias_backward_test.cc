#include "workers/ops/activation/expert_bias_backward.h"

#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kTokens = 60, kWidth = 37, kRows = 150;

class ExpertBiasBackwardTest : public OpTest {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = static_cast<int32_t>(i * 7 % kTokens);
    for (uint32_t e = 0; e < 3; ++e) bias_.push_back(RandomMatrix(dtype(), 1, kWidth, 30 + e));
    for (const Tensor& bias : bias_) biases_.push_back(bias.view().Reshape({kWidth}));
    for (int e = 0; e < 3; ++e) gradient_.push_back(RandomMatrix(acc(), 1, kWidth, 50));
    for (const Tensor& gradient : gradient_) gradients_.push_back(gradient.view().Reshape({kWidth}));
  }

  const std::vector<int32_t> offsets_ = {0, 90, 90, kRows};
  std::vector<int32_t> rows_ = std::vector<int32_t>(kRows);
  std::vector<Tensor> bias_, gradient_;
  std::vector<TensorView> biases_, gradients_;
};

TEST_P(ExpertBiasBackwardTest, MatchesTheFormula) {
  const Tensor d = RandomMatrix(dtype(), kTokens, kWidth, 1), weight = RandomMatrix(acc(), kRows, 1, 2);
  const Tensor dweight = RandomMatrix(acc(), kRows, 1, 3), before = Copy(dweight);
  std::vector<std::vector<double>> want;
  for (const Tensor& gradient : gradient_) want.push_back(RowOf(gradient, 0));
  ASSERT_TRUE(ExpertBiasBackward(stream(),
                                 {.offsets = offsets_, .rows = rows_, .biases = biases_, .gradients = gradients_}, d,
                                 weight, dweight)
                  .ok());
  for (int e = 0; e < 3; ++e) {
    for (int64_t i = offsets_[e]; i < offsets_[e + 1]; ++i) {
      double dot = Get(before, i, 0);
      for (int64_t j = 0; j < kWidth; ++j) {
        dot += Get(d, rows_[i], j) * Get(bias_[e], 0, j);
        want[e][j] += Get(weight, i, 0) * Get(d, rows_[i], j);
      }
      ExpectNearAtScale({Get(dweight, i, 0)}, {dot}, 5, reference::ReductionTolerance(acc()), "dweight");
    }
    ExpectNearAtScale(RowOf(gradient_[e], 0), want[e], 5, reference::ReductionTolerance(acc()), "gradient");
  }
}

TEST_P(ExpertBiasBackwardTest, ThreadsDoNotMatterAndRowsMayBeInOrder) {
  const Tensor d = RandomMatrix(dtype(), kRows, kWidth, 1), weight = RandomMatrix(acc(), kRows, 1, 2);
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    const Tensor dweight = Tensor::Zeros(acc(), {kRows, 1});
    Tensor gradient = Tensor::Zeros(acc(), {1, kWidth});
    gradients_[2] = gradient.view().Reshape({kWidth});
    EXPECT_TRUE(ExpertBiasBackward(stream, {.offsets = offsets_, .biases = biases_, .gradients = gradients_}, d, weight,
                                   dweight)
                    .ok());
    return gradient;
  });
}

TEST_P(ExpertBiasBackwardTest, MisfitsAreNamed) {
  const Tensor d(dtype(), {kTokens, kWidth}), weight(acc(), {kRows, 1}), fewer(acc(), {kRows - 1, 1});
  ExpertBiasBackwardDesc desc = {.offsets = offsets_, .rows = rows_, .biases = biases_, .gradients = gradients_};
  ExpectNames(ExpertBiasBackward(stream(), desc, d, fewer, fewer), "rows must be 149 numbers");
  ExpectNames(ExpertBiasBackward(stream(), desc, d, weight, fewer), "dweight must be");
  desc.biases = desc.biases.subspan(1);
  ExpectNames(ExpertBiasBackward(stream(), desc, d, weight, weight), "2 biases and 3 gradients");
}

SY_INSTANTIATE_OP_TEST(ExpertBiasBackwardTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
