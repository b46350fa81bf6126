#include "workers/ops/activation/row_sums.h"

#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class RowSumsTest : public OpTest {};

TEST_P(RowSumsTest, MatchDoubles) {
  const Tensor whole = RandomMatrix(dtype(), 130, 40, 2, 3.0);
  const Tensor sums = RandomMatrix(acc(), 130, 37, 3);
  // (Rows may be parts of wider ones, as those of q are of q, k and v together.)
  const TensorView rows = whole.view().Columns(3, 37);
  std::vector<std::vector<double>> scaled, added;
  for (int64_t r = 0; r < 130; ++r) {
    scaled.push_back(RowOf(rows, r));
    for (double& value : scaled.back()) value *= 0.3;
  }
  ScaleRows(stream(), 0.3, rows);
  for (int64_t r = 0; r < 130; ++r) {
    ExpectNear(RowOf(rows, r), scaled[r], reference::ElementwiseTolerance(dtype()), "scaled " + std::to_string(r));
    added.push_back(RowOf(rows, r));
    for (int64_t j = 0; j < 37; ++j) added.back()[j] += Get(sums, r, j);
  }
  AddRounded(stream(), sums, rows);
  for (int64_t r = 0; r < 130; ++r) {
    ExpectNear(RowOf(rows, r), added[r], reference::ElementwiseTolerance(dtype()), "added " + std::to_string(r));
  }
}

TEST_P(RowSumsTest, LeaveTheColumnsBeside) {
  const Tensor whole = RandomMatrix(dtype(), 5, 8, 2), sums = RandomMatrix(acc(), 5, 3, 3);
  const Tensor before = Copy(whole);
  ScaleRows(stream(), 0.5, whole.view().Columns(2, 3));
  AddRounded(stream(), sums, whole.view().Columns(2, 3));
  for (const int64_t first : {0, 5}) {
    const int64_t count = first == 0 ? 2 : 3;
    EXPECT_TRUE(SameBits(Copy(before.view().Columns(first, count)), 0, Copy(whole.view().Columns(first, count))));
  }
  EXPECT_FALSE(SameBits(before, 0, whole));
}

TEST_P(RowSumsTest, RowsIgnoreCompany) {
  const Tensor rows = RandomMatrix(dtype(), 300, 20, 3, 3.0), sums = RandomMatrix(acc(), 300, 20, 4);
  ExpectRowsIgnoreCompany(300, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y = Copy(rows.view().Rows(begin, count));
    ScaleRows(stream, 0.7, y);
    AddRounded(stream, sums.view().Rows(begin, count), y);
    return y;
  });
}

TEST_P(RowSumsTest, RefuseWrongShapes) {
  const Tensor y(dtype(), {3, 5}), narrow(acc(), {3, 4}), few(acc(), {2, 5});
  EXPECT_DEATH(AddRounded(stream(), narrow, y), "sums.dim");
  EXPECT_DEATH(AddRounded(stream(), few, y), "sums.dim");
  EXPECT_DEATH(AddRounded(stream(), Tensor(dtype() == DType::kF64 ? DType::kF32 : DType::kF64, {3, 5}), y), "AccDType");
}

SY_INSTANTIATE_OP_TEST(RowSumsTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
