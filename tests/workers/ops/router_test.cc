#include "workers/ops/router/router.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class RouterTest : public OpTest {
 protected:
  // idx and weight as one matrix [T, 2K], to be compared as a whole.
  Tensor Run(const Stream& stream, const TensorView& logits, int64_t k, bool renormalize, const TensorView& bias = {}) {
    const Tensor idx(DType::kI32, {logits.dim(0), k}), weight(dtype(), {logits.dim(0), k});
    EXPECT_TRUE(RouteTopK(stream, {.top_k = k, .renormalize = renormalize, .bias = bias}, logits, idx, weight).ok());
    Tensor both(dtype(), {logits.dim(0), 2 * k});
    for (int64_t t = 0; t < logits.dim(0); ++t) {
      for (int64_t i = 0; i < k; ++i) {
        Set(both, t, i, idx.view().row<int32_t>(t)[i]);
        Set(both, t, k + i, Get(weight, t, i));
      }
    }
    return both;
  }
};

TEST_P(RouterTest, MatchesReference) {
  for (auto [experts, k] : {std::pair{1, 1}, {2, 2}, {7, 3}, {16, 2}, {64, 8}, {512, 16}}) {
    for (bool renormalize : {false, true}) {
      const Tensor logits = RandomMatrix(dtype(), 9, experts, 1, 3.0);
      const Tensor got = Run(stream(), logits, k, renormalize);
      for (int64_t t = 0; t < 9; ++t) {
        const reference::Route want = reference::RouteTopK(RowOf(logits, t), k, renormalize);
        for (int i = 0; i < k; ++i) ASSERT_EQ(Get(got, t, i), want.experts[i]) << experts << " experts, k " << i;
        ExpectNear(RowOf(got.view().Columns(k, k), t), want.weights, reference::ElementwiseTolerance(dtype()),
                   std::to_string(experts) + " experts");
      }
    }
  }
}

// Chosen with the bias, weighed without.
TEST_P(RouterTest, ABiasMovesTheChoiceAlone) {
  for (auto [experts, k] : {std::pair{2, 1}, {7, 3}, {16, 2}, {64, 8}, {70, 16}}) {
    for (bool renormalize : {false, true}) {
      const Tensor logits = RandomMatrix(dtype(), 9, experts, 1), bias = RandomMatrix(dtype(), 1, experts, 2, 0.05);
      const Tensor got = Run(stream(), logits, k, renormalize, bias.view().Reshape({experts}));
      int moved = 0;
      for (int64_t t = 0; t < 9; ++t) {
        const reference::Route want = reference::RouteTopK(RowOf(logits, t), k, renormalize, RowOf(bias, 0));
        const reference::Route plain = reference::RouteTopK(RowOf(logits, t), k, renormalize);
        for (int i = 0; i < k; ++i) ASSERT_EQ(Get(got, t, i), want.experts[i]) << experts << " experts, k " << i;
        ExpectNear(RowOf(got.view().Columns(k, k), t), want.weights, reference::ElementwiseTolerance(dtype()),
                   std::to_string(experts) + " experts");
        moved += want.experts != plain.experts ? 1 : 0;
      }
      EXPECT_TRUE(moved > 0 || experts == 2);
    }
  }
}

TEST_P(RouterTest, ABiasOfAnotherWidthIsNamed) {
  const Tensor logits(dtype(), {1, 4}), idx(DType::kI32, {1, 2}), weight(dtype(), {1, 2});
  const Tensor bias = Tensor::Zeros(dtype(), {3});
  const absl::Status status = RouteTopK(stream(), {.top_k = 2, .bias = bias}, logits, idx, weight);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("bias"), std::string::npos) << status;
}

TEST_P(RouterTest, TiesGoToTheSmallerId) {
  const Tensor logits(dtype(), {1, 6});
  for (auto [c, v] : {std::pair{0, 1.0}, {1, 2.0}, {2, 1.0}, {3, 2.0}, {4, 2.0}, {5, 0.0}}) Set(logits, 0, c, v);
  const Tensor got = Run(stream(), logits, 4, true);
  EXPECT_EQ(RowOf(got.view().Columns(0, 4), 0), (std::vector<double>{1, 3, 4, 0}));
}

TEST_P(RouterTest, NanLosesAndShows) {
  const Tensor logits(dtype(), {2, 4});
  for (int64_t c = 0; c < 4; ++c) Set(logits, 0, c, std::nan("")), Set(logits, 1, c, c == 1 ? std::nan("") : -INFINITY);
  const Tensor got = Run(stream(), logits, 3, false);
  EXPECT_EQ(RowOf(got.view().Columns(0, 3), 0), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(RowOf(got.view().Columns(0, 3), 1), (std::vector<double>{0, 2, 3}));
  for (int64_t t = 0; t < 2; ++t) EXPECT_TRUE(std::isnan(Get(got, t, 3)));
}

TEST_P(RouterTest, RowsIgnoreCompany) {
  const Tensor logits = RandomMatrix(dtype(), 512, 60, 2, 3.0);
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    return Run(stream, logits.view().Rows(begin, count), 8, true);
  });
}

TEST_P(RouterTest, NoTokensIsFineAndBadTopKIsNamed) {
  const Tensor none(dtype(), {0, 4});
  EXPECT_EQ(Run(stream(), none, 2, true).dim(0), 0);
  const Tensor logits(dtype(), {1, 4}), idx(DType::kI32, {1, 5}), weight(dtype(), {1, 5});
  EXPECT_EQ(RouteTopK(stream(), {.top_k = 5}, logits, idx, weight).message(),
            "router: top_k must be in [1, 4] for 4 experts, is 5");
}

SY_INSTANTIATE_OP_TEST(RouterTest, kAccDTypes);

}  // namespace
}  // namespace switchyard::ops
