#include "workers/ops/optimizer/cross_entropy.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kRows = 40;

class CrossEntropyTest : public OpTest {
 protected:
  // Every third row is ignored.
  static std::vector<int32_t> Targets(int64_t vocab) {
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < kRows; ++r) targets.push_back(r % 3 == 1 ? -100 : static_cast<int32_t>(r * 5 % vocab));
    return targets;
  }
};
class CrossEntropyF64Test : public CrossEntropyTest {};
class CrossEntropyInPlaceTest : public CrossEntropyTest {};

TEST_P(CrossEntropyTest, MatchesReference) {
  for (int64_t vocab : {1, 7, 16, 33, 1000}) {
    const Tensor logits = RandomMatrix(acc(), kRows, vocab, 1, 4.0), dlogits = RandomMatrix(dtype(), kRows, vocab, 2);
    const std::vector<int32_t> targets = Targets(vocab);
    const absl::StatusOr<double> loss = CrossEntropy(stream(), 0.25, logits, targets, dlogits);
    ASSERT_TRUE(loss.ok()) << loss.status();
    double sum = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<double> want(vocab);
      if (targets[r] >= 0) {
        want = reference::Softmax(RowOf(logits, r));
        sum -= std::log(want[targets[r]]);
        want[targets[r]] -= 1;
      }
      for (double& v : want) v *= 0.25;
      for (int64_t j = 0; j < vocab; ++j) {
        ASSERT_NEAR(Get(dlogits, r, j), want[j], reference::ReductionTolerance(dtype()).relative * 0.25)
            << r << ", " << j;
        if (targets[r] < 0) {
          ASSERT_EQ(Get(dlogits, r, j), 0);
        }
      }
    }
    EXPECT_NEAR(*loss, sum, reference::ReductionTolerance(acc()).relative * (1 + sum)) << "vocabulary " << vocab;
    EXPECT_EQ(*loss, CrossEntropy(stream(), 0.25, logits, targets, TensorView()).value()) << "without a gradient";
  }
}

TEST_P(CrossEntropyInPlaceTest, IsTheSame) {
  const Tensor logits = RandomMatrix(acc(), kRows, 45, 1), apart(dtype(), {kRows, 45});
  ASSERT_TRUE(CrossEntropy(stream(), 2, logits, Targets(45), apart).ok());
  ASSERT_TRUE(CrossEntropy(stream(), 2, logits, Targets(45), logits).ok());
  EXPECT_TRUE(SameBits(logits, 0, apart));
}

// Logits far apart: the loss is their distance, nothing overflows.
TEST_P(CrossEntropyTest, FarApart) {
  const Tensor logits = Tensor::Zeros(acc(), {1, 20}), dlogits(dtype(), {1, 20});
  Set(logits, 0, 3, 5000);
  EXPECT_EQ(CrossEntropy(stream(), 1, logits, {0}, dlogits).value(), 5000);
  EXPECT_EQ(Get(dlogits, 0, 0), -1);
  EXPECT_EQ(Get(dlogits, 0, 3), 1);
}

TEST_P(CrossEntropyTest, RowsAndLossIgnoreThreads) {
  const Tensor logits = RandomMatrix(acc(), kRows, 136, 1);
  const std::vector<int32_t> targets = Targets(136);
  ExpectRowsIgnoreCompany(kRows, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor d(dtype(), {count, 136});
    EXPECT_TRUE(
        CrossEntropy(stream, 1, logits.view().Rows(begin, count), absl::MakeSpan(targets).subspan(begin, count), d)
            .ok());
    return d;
  });
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    Tensor loss(DType::kF64, {1});
    loss.data<double>()[0] = CrossEntropy(stream, 1, logits, targets, TensorView()).value();
    return loss;
  });
}

TEST_P(CrossEntropyF64Test, IsTheGradient) {
  const Tensor logits = RandomMatrix(acc(), 4, 13, 1), d(dtype(), {4, 13});
  const std::vector<int32_t> targets = {3, -1, 0, 12};
  ASSERT_TRUE(CrossEntropy(stream(), 1, logits, targets, d).ok());
  ExpectIsGradient(logits, d, [&] { return CrossEntropy(stream(), 1, logits, targets, TensorView()).value(); });
}

TEST_P(CrossEntropyTest, MisfitsAreNamed) {
  const Tensor logits(acc(), {2, 5}), d(dtype(), {2, 5});
  ExpectNames(CrossEntropy(stream(), 1, logits, {0, 5}, d).status(), "targets[1] = 5 is outside");
  ExpectNames(CrossEntropy(stream(), 1, logits, {0}, d).status(), "logits must be");
  ExpectNames(CrossEntropy(stream(), 1, logits, {0, 1}, Tensor(dtype(), {2, 4})).status(), "dlogits must be");
}

SY_INSTANTIATE_OP_TEST(CrossEntropyTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(CrossEntropyF64Test, {DType::kF64});
SY_INSTANTIATE_OP_TEST(CrossEntropyInPlaceTest, kAccDTypes);

}  // namespace
}  // namespace switchyard::ops
