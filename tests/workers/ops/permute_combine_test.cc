// Sorting rows by expert, gathering them, and combine: each by itself, and as each other's inverse.
#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/ops/exchange/combine.h"
#include "workers/ops/exchange/permute.h"

namespace switchyard::ops {
namespace {

Tensor Choices(std::initializer_list<std::initializer_list<int32_t>> rows) {
  Tensor t(DType::kI32, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.begin()->size())});
  int32_t* to = t.data<int32_t>();
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return t;
}

std::vector<int32_t> Ints(const TensorView& view) {
  return std::vector<int32_t>(view.data<int32_t>(), view.data<int32_t>() + view.NumElements());
}

// An order with memory of its own; token is cut to the rows that there are.
struct OwnedOrder {
  Tensor offsets, token, slot_row;
  absl::Status status;

  OwnedOrder(const TensorView& idx, int64_t num_experts)
      : offsets(DType::kI32, {num_experts + 1}),
        token(DType::kI32, {idx.NumElements()}),
        slot_row(DType::kI32, {idx.NumElements()}) {
    ThreadPool pool(1);
    status = BuildExpertOrder(Stream::OnCpu(&pool), idx, num_experts, {offsets, token, slot_row});
  }
  TensorView rows() const { return token.view().Rows(0, Ints(offsets).back()); }
};

TEST(ExpertOrderTest, SortsStablyAndLeavesEmptyRanges) {
  const OwnedOrder order(Choices({{3, 1}, {1, -1}, {3, 0}}), 5);
  ASSERT_TRUE(order.status.ok());
  EXPECT_EQ(Ints(order.offsets), (std::vector<int32_t>{0, 1, 3, 3, 5, 5}));
  EXPECT_EQ(Ints(order.rows()), (std::vector<int32_t>{2, 0, 1, 0, 2}));
  EXPECT_EQ(Ints(order.slot_row), (std::vector<int32_t>{3, 1, 2, -1, 4, 0}));
}

TEST(ExpertOrderTest, OneExpertTakesAllOrThereIsNothing) {
  const OwnedOrder order(Choices({{2}, {2}, {2}}), 4);
  EXPECT_EQ(Ints(order.offsets), (std::vector<int32_t>{0, 0, 0, 3, 3}));
  EXPECT_EQ(Ints(order.rows()), (std::vector<int32_t>{0, 1, 2}));
  const OwnedOrder none(Tensor(DType::kI32, {0, 2}), 4);
  ASSERT_TRUE(none.status.ok());
  EXPECT_EQ(Ints(none.offsets), (std::vector<int32_t>(5, 0)));
}

TEST(ExpertOrderTest, AnIdOutsideIsNamed) {
  EXPECT_EQ(OwnedOrder(Choices({{0, 1}, {4, 1}}), 4).status.message(),
            "permute: expert 4 of token 1, k 0 is outside [-1, 4)");
}

TEST(ExpertOrderTest, CountsAddUp) {
  ThreadPool pool(1);
  const Tensor counts = Tensor::Zeros(DType::kI32, {4});
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(CountExperts(Stream::OnCpu(&pool), Choices({{3, 1}, {1, -1}}), counts).ok());
  }
  EXPECT_EQ(Ints(counts), (std::vector<int32_t>{0, 4, 0, 2}));
  EXPECT_EQ(CountExperts(Stream::OnCpu(&pool), Choices({{4}}), counts).message(),
            "count_experts: expert 4 is outside [-1, 4)");
}

class CombineTest : public OpTest {};

TEST_P(CombineTest, GathersRowsOfStridedInput) {
  const Tensor x = RandomMatrix(dtype(), 4, 50, 1), y(dtype(), {3, 30});
  ASSERT_TRUE(GatherRows(stream(), x.view().Columns(11, 30), std::vector<int32_t>{2, 0, 2}, y).ok());
  const std::vector<int64_t> from = {2, 0, 2};
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(RowOf(y, i), RowOf(x.view().Columns(11, 30), from[i]));
  EXPECT_EQ(GatherRows(stream(), x, std::vector<int32_t>{0, 4, 1}, Tensor(dtype(), {3, 50})).message(),
            "gather_rows: rows[1] = 4 is outside [0, 4)");
}

TEST_P(CombineTest, MatchesReferenceWithSharedExpertAndDroppedSlots) {
  const int64_t rows = 3, k = 2, width = 45;
  const Tensor y = RandomMatrix(dtype(), 5, width, 1), weight = RandomMatrix(acc(), rows, k, 2),
               shared = RandomMatrix(dtype(), rows, width, 3), gate = RandomMatrix(acc(), rows, 1, 4),
               residual = RandomMatrix(acc(), rows, width, 5);
  const Tensor before = Copy(residual);
  const std::vector<int32_t> slots = {4, 0, -1, 1, -1, -1};
  ASSERT_TRUE(
      Combine(stream(), {.y = y, .slot_row = slots, .weight = weight, .shared = shared, .shared_gate = gate}, residual)
          .ok());
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<double> want = RowOf(before, t);
    for (int64_t c = 0; c < width; ++c) {
      for (int64_t i = 0; i < k; ++i) {
        if (slots[t * k + i] >= 0) want[c] += Get(weight, t, i) * Get(y, slots[t * k + i], c);
      }
      want[c] += reference::Sigmoid(Get(gate, t, 0)) * Get(shared, t, c);
    }
    ExpectNear(RowOf(residual, t), want, reference::ElementwiseTolerance(acc()), "token " + std::to_string(t));
  }
}

TEST_P(CombineTest, NoWeightsAreOnes) {
  const int64_t rows = 3, k = 2, width = 45;
  const Tensor y = RandomMatrix(dtype(), 5, width, 1), before = RandomMatrix(acc(), rows, width, 5);
  const Tensor ones(acc(), {rows, k}), want = Copy(before), got = Copy(before);
  for (int64_t t = 0; t < rows; ++t) Set(ones, t, 0, 1.0), Set(ones, t, 1, 1.0);
  const std::vector<int32_t> slots = {4, 0, -1, 1, -1, -1};
  ASSERT_TRUE(Combine(stream(), {.y = y, .slot_row = slots, .weight = ones}, want).ok());
  ASSERT_TRUE(Combine(stream(), {.y = y, .slot_row = slots}, got).ok());
  const Tensor want_sums(dtype(), {rows, width}), sums(dtype(), {rows, width});
  ASSERT_TRUE(AddOutputs(stream(), {.y = y, .slot_row = slots, .weight = ones}, want_sums).ok());
  ASSERT_TRUE(AddOutputs(stream(), {.y = y, .slot_row = slots}, sums).ok());
  for (int64_t t = 0; t < rows; ++t) {
    EXPECT_EQ(RowOf(got, t), RowOf(want, t)) << t;
    EXPECT_EQ(RowOf(sums, t), RowOf(want_sums, t)) << t;
  }
  EXPECT_TRUE(Combine(stream(), {.y = y, .slot_row = {}}, Tensor(acc(), {0, width})).ok());
  EXPECT_FALSE(Combine(stream(), {.y = y, .slot_row = std::vector<int32_t>{1, 2, 3, 4}}, got).ok());  // of 3 rows
}

TEST_P(CombineTest, UndoesTheOrderForIdentityExperts) {
  const Tensor x = RandomMatrix(dtype(), 6, 32, 1), residual = Tensor::Zeros(acc(), {6, 32});
  const Tensor idx = Choices({{0, 3}, {3, 1}, {2, 0}, {3, 2}, {1, 0}, {3, 0}});
  const Tensor weight(acc(), {6, 2});
  for (int64_t t = 0; t < 6; ++t) Set(weight, t, 0, 0.25), Set(weight, t, 1, 0.75);
  const OwnedOrder order(idx, 4);
  ASSERT_TRUE(order.status.ok());
  const Tensor sorted(dtype(), {order.rows().dim(0), 32});
  ASSERT_TRUE(GatherRows(stream(), x, IntView(order.rows()), sorted).ok());
  ASSERT_TRUE(
      Combine(stream(), {.y = sorted, .slot_row = IntView(order.slot_row.view()), .weight = weight}, residual).ok());
  for (int64_t t = 0; t < 6; ++t) {
    ExpectNear(RowOf(residual, t), RowOf(x, t), reference::ElementwiseTolerance(acc()), "token " + std::to_string(t));
  }
}

TEST_P(CombineTest, RowsIgnoreCompanyAndPlaceOfTheirSlots) {
  const int64_t rows = 512, k = 3, width = 72;
  const Tensor y = RandomMatrix(dtype(), rows * k, width, 1), weight = RandomMatrix(acc(), rows, k, 2),
               shared = RandomMatrix(dtype(), rows, width, 3), residual = RandomMatrix(acc(), rows, width, 5);
  ExpectRowsIgnoreCompany(rows, [&](const Stream& stream, int64_t begin, int64_t count) {
    // The same expert outputs, but in reversed order in memory.
    Tensor mine(dtype(), {count * k, width}), to = Copy(residual.view().Rows(begin, count));
    std::vector<int32_t> slots(count * k);
    for (int64_t i = 0; i < count * k; ++i) {
      slots[i] = static_cast<int32_t>(count * k - 1 - i);
      std::memcpy(static_cast<char*>(mine.view().raw()) + slots[i] * width * DTypeBytes(dtype()),
                  static_cast<char*>(y.view().raw()) + (begin * k + i) * width * DTypeBytes(dtype()),
                  width * DTypeBytes(dtype()));
    }
    const CombineInputs inputs = {.y = mine,
                                  .slot_row = slots,
                                  .weight = weight.view().Rows(begin, count),
                                  .shared = shared.view().Rows(begin, count)};
    EXPECT_TRUE(Combine(stream, inputs, to).ok());
    return to;
  });
}

TEST_P(CombineTest, NoTokensIsFineAndABadSlotIsNamed) {
  const Tensor none(dtype(), {0, 8}), weights(acc(), {0, 2}), residual(acc(), {0, 8});
  EXPECT_TRUE(Combine(stream(), {.y = none, .slot_row = {}, .weight = weights}, residual).ok());
  const Tensor weight(acc(), {1, 1}), to(acc(), {1, 8});
  EXPECT_EQ(Combine(stream(), {.y = none, .slot_row = std::vector<int32_t>{0}, .weight = weight}, to).message(),
            "combine: slot_row[0] = 0 is outside [-1, 0)");
}

SY_INSTANTIATE_OP_TEST(CombineTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
