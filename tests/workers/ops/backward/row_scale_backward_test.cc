// The backward of rows scaled by a number each, over dtypes and instruction sets.
#include "workers/ops/norm/row_scale_backward.h"

#include <string>
#include <vector>

#include "tests/reference/tolerance.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class RowScaleBackwardTest : public OpTest {};
SY_INSTANTIATE_OP_TEST(RowScaleBackwardTest, kAllDTypes);

TEST_P(RowScaleBackwardTest, IsTheDefinition) {
  for (const int64_t width : {1, 16, 77, 256}) {
    const Tensor wide = RandomMatrix(dtype(), 5, width + 2, 1), weight = RandomMatrix(acc(), 5, 1, 2);
    const TensorView x = wide.view().Columns(1, width);
    const Tensor dy = RandomMatrix(dtype(), 5, width, 3), dx = Copy(dy), y(dtype(), {5, width}), dweight(acc(), {5, 1});
    ASSERT_TRUE(RowScaleBackward(stream(), {.x = x, .weight = weight, .dy = dx, .y = y, .dweight = dweight}).ok());
    for (int64_t r = 0; r < 5; ++r) {
      std::vector<double> expected_dx = RowOf(dy, r), expected_y = RowOf(x, r);
      double sum = 0, magnitude = 0;
      for (size_t j = 0; j < expected_y.size(); ++j) {
        sum += expected_dx[j] * expected_y[j];
        magnitude += std::abs(expected_dx[j] * expected_y[j]);
        expected_dx[j] *= Get(weight, r, 0);
        expected_y[j] *= Get(weight, r, 0);
      }
      const std::string where = "row " + std::to_string(r) + " of width " + std::to_string(width);
      ExpectNear(RowOf(dx, r), expected_dx, reference::ElementwiseTolerance(dtype()), where);
      ExpectNear(RowOf(y, r), expected_y, reference::ElementwiseTolerance(dtype()), where);
      // Of exact products: only AccDType rounds.
      EXPECT_NEAR(Get(dweight, r, 0), sum, reference::ReductionTolerance(acc()).relative * magnitude) << where;
    }
  }
}

TEST_P(RowScaleBackwardTest, RowsIgnoreCompanyAndYMayBeX) {
  const Tensor x = RandomMatrix(dtype(), 300, 77, 1), dy = RandomMatrix(dtype(), 300, 77, 2);
  const Tensor weight = RandomMatrix(acc(), 300, 1, 3);
  for (const int which : {0, 1, 2}) {
    ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
      Tensor y = Copy(x.view().Rows(begin, count)), dx = Copy(dy.view().Rows(begin, count)), dweight(acc(), {count, 1});
      EXPECT_TRUE(
          RowScaleBackward(stream,
                           {.x = y, .weight = weight.view().Rows(begin, count), .dy = dx, .y = y, .dweight = dweight})
              .ok());
      return which == 0 ? std::move(y) : which == 1 ? std::move(dx) : std::move(dweight);
    });
  }
}

TEST_P(RowScaleBackwardTest, NamesWhatDoesNotFit) {
  const Tensor x = RandomMatrix(dtype(), 3, 4, 1), other(dtype(), {3, 5}), number(acc(), {3, 1}), few(acc(), {2, 1});
  const auto message = [&](const RowScaleBackwardRows& rows) {
    const absl::Status status = RowScaleBackward(stream(), rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(message({.x = x, .weight = few, .dy = x, .y = x, .dweight = number}), HasSubstr("weight must be"));
  EXPECT_THAT(message({.x = x, .weight = number, .dy = other, .y = x, .dweight = number}), HasSubstr("dy must be"));
  EXPECT_THAT(message({.x = x, .weight = number, .dy = x, .y = other, .dweight = number}), HasSubstr(" y must be"));
  EXPECT_THAT(message({.x = x, .weight = number, .dy = x, .y = x, .dweight = few}), HasSubstr("dweight must be"));
}

}  // namespace
}  // namespace switchyard::ops
