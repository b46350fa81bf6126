#include "workers/ops/activation/swiglu.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class SwiGluTest : public OpTest {};

TEST_P(SwiGluTest, MatchesReference) {
  const Tensor sums = RandomMatrix(dtype(), 40, 2 * 37, 2, 3.0), y(dtype(), {40, 37});
  ASSERT_TRUE(SwiGlu(stream(), sums, y).ok());
  for (int64_t r = 0; r < 40; ++r) {
    const std::vector<double> row = RowOf(sums, r);
    const auto middle = row.begin() + 37;
    ExpectNear(RowOf(y, r), reference::SwiGlu({row.begin(), middle}, {middle, row.end()}),
               reference::ElementwiseTolerance(dtype()), "row " + std::to_string(r));
  }
}

TEST_P(SwiGluTest, FarFromZero) {
  const double far = dtype() == DType::kF16 ? 6e4 : 1e20;
  const Tensor sums(dtype(), {1, 4}), y(dtype(), {1, 2});
  Set(sums, 0, 0, far), Set(sums, 0, 1, -far), Set(sums, 0, 2, 1), Set(sums, 0, 3, 1);
  ASSERT_TRUE(SwiGlu(stream(), sums, y).ok());
  EXPECT_EQ(Get(y, 0, 0), Get(sums, 0, 0));
  EXPECT_EQ(Get(y, 0, 1), 0);
}

TEST_P(SwiGluTest, RowsIgnoreCompany) {
  const Tensor sums = RandomMatrix(dtype(), 300, 40, 3, 3.0);
  ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y(dtype(), {count, 20});
    EXPECT_TRUE(SwiGlu(stream, sums.view().Rows(begin, count), y).ok());
    return y;
  });
}

TEST_P(SwiGluTest, RefusesWrongArguments) {
  const Tensor sums(dtype(), {3, 10}), y(dtype(), {3, 5}), narrow(dtype(), {3, 4});
  EXPECT_TRUE(SwiGlu(stream(), sums, y).ok());
  EXPECT_FALSE(SwiGlu(stream(), sums, narrow).ok());
  EXPECT_FALSE(SwiGlu(stream(), sums.view().Rows(0, 2), y).ok());
}

SY_INSTANTIATE_OP_TEST(SwiGluTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
