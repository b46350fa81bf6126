#include "workers/ops/activation/gelu.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

constexpr Activation kKinds[] = {Activation::kGelu, Activation::kGeluTanh};

class GeluTest : public OpTest {};

TEST_P(GeluTest, MatchesReference) {
  const Tensor x = RandomMatrix(dtype(), 6, 77, 2, 3.0), y(dtype(), {6, 77});
  for (const Activation kind : kKinds) {
    ASSERT_TRUE(Gelu(stream(), kind, x, y).ok());
    for (int64_t r = 0; r < 6; ++r) {
      std::vector<double> want;
      for (const double v : RowOf(x, r)) want.push_back(reference::Gelu(v, kind == Activation::kGeluTanh));
      ExpectNear(RowOf(y, r), want, reference::ElementwiseTolerance(dtype()), "row " + std::to_string(r));
    }
  }
}

// The two are different functions, each with its own values (of scipy and HF's NewGELUActivation).
TEST_P(GeluTest, KnownValues) {
  const Tensor x(dtype(), {1, 3}), y(dtype(), {1, 3});
  Set(x, 0, 0, 1), Set(x, 0, 1, -2), Set(x, 0, 2, 0);
  const double step = reference::ElementwiseTolerance(dtype()).relative;
  ASSERT_TRUE(Gelu(stream(), Activation::kGelu, x, y).ok());
  EXPECT_NEAR(Get(y, 0, 0), 0.8413447460685429, step);
  EXPECT_NEAR(Get(y, 0, 1), -0.04550026389635842, step);
  EXPECT_EQ(Get(y, 0, 2), 0);
  ASSERT_TRUE(Gelu(stream(), Activation::kGeluTanh, x, y).ok());
  EXPECT_NEAR(Get(y, 0, 0), 0.8411919906082768, step);
  EXPECT_NEAR(Get(y, 0, 1), -0.04540230591222494, step);
}

TEST_P(GeluTest, FarFromZero) {
  const double far = dtype() == DType::kF16 ? 6e4 : 1e20;
  const Tensor x(dtype(), {1, 2}), y(dtype(), {1, 2});
  Set(x, 0, 0, far), Set(x, 0, 1, -far);
  for (const Activation kind : kKinds) {
    ASSERT_TRUE(Gelu(stream(), kind, x, y).ok());
    EXPECT_EQ(Get(y, 0, 0), Get(x, 0, 0));
    EXPECT_EQ(Get(y, 0, 1), 0);
  }
}

TEST_P(GeluTest, RowsIgnoreCompany) {
  const Tensor x = RandomMatrix(dtype(), 300, 40, 3, 3.0);
  for (const Activation kind : kKinds) {
    ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
      Tensor y(dtype(), {count, 40});
      EXPECT_TRUE(Gelu(stream, kind, x.view().Rows(begin, count), y).ok());
      return y;
    });
  }
}

TEST_P(GeluTest, MisfitsAreNamed) {
  const Tensor x(dtype(), {2, 6}), odd(dtype(), {2, 5}), none(dtype(), {0, 5});
  EXPECT_TRUE(Gelu(stream(), Activation::kGelu, none, none).ok());
  const absl::Status status = Gelu(stream(), Activation::kGelu, odd, x);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("gelu: x must be"));
}

SY_INSTANTIATE_OP_TEST(GeluTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
