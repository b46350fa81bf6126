// RoundRows: from any floating dtype to any other, rows with or without a stride, on any number of threads.
#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

class RoundRowsTest : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam(), false};
  const Stream stream_ = Stream::OnCpu(&pool_);
};
INSTANTIATE_TEST_SUITE_P(Threads, RoundRowsTest, testing::Values(1, 3));

TEST_P(RoundRowsTest, ToNearestEvenAndNothingBeside) {
  constexpr int64_t kRows = 700, kWidth = 70;
  const Tensor from(DType::kF32, {kRows, kWidth + 3}), to(DType::kBf16, {kRows, kWidth + 1});
  for (int64_t i = 0; i < from.view().NumElements(); ++i) {
    from.data<float>()[i] = static_cast<float>(i % 257) + 0.25f * static_cast<float>(i % 5);
  }
  from.data<float>()[1] = 1.0f + 1.0f / 256;  // halfway between 1 and 1 + 1/128: even is 1
  from.data<float>()[2] = 1.0f + 3.0f / 256;  // halfway: even is 1 + 2/128
  from.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < to.view().NumElements(); ++i) to.data<Bf16>()[i] = Bf16(-7.0f);
  ASSERT_TRUE(RoundRows(stream_, from.view().Columns(0, kWidth), to.view().Columns(0, kWidth)).ok());
  EXPECT_EQ(static_cast<float>(to.data<Bf16>()[1]), 1.0f);
  EXPECT_EQ(static_cast<float>(to.data<Bf16>()[2]), 1.0f + 2.0f / 128);
  EXPECT_TRUE(std::isnan(static_cast<float>(to.data<Bf16>()[3])));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = row == 0 ? 4 : 0; column < kWidth; ++column) {
      ASSERT_EQ(to.view().row<Bf16>(row)[column].bits, Bf16(from.view().row<float>(row)[column]).bits);
    }
    ASSERT_EQ(static_cast<float>(to.view().row<Bf16>(row)[kWidth]), -7.0f);
  }
}

TEST_P(RoundRowsTest, AnyDTypeToAnyOther) {
  const DType dtypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16};
  for (const DType in : dtypes) {
    for (const DType out : dtypes) {
      const Tensor from(in, {2, 3}), to(out, {2, 3});
      // Values that all dtypes can hold.
      VisitDType(in, [&]<class Elem>() {
        for (int i = 0; i < 6; ++i)
          from.data<Elem>()[i] = static_cast<Elem>(static_cast<Acc<Elem>>(i) - Acc<Elem>{2.5});
      });
      ASSERT_TRUE(RoundRows(stream_, from, to).ok());
      VisitDType(out, [&]<class Elem>() {
        for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<double>(static_cast<Acc<Elem>>(to.data<Elem>()[i])), i - 2.5);
      });
    }
  }
}

TEST_P(RoundRowsTest, NamesWhatDoesNotFit) {
  const Tensor from(DType::kF32, {2, 3}), narrow(DType::kBf16, {2, 2}), numbers(DType::kI32, {2, 3});
  const absl::Status shape = RoundRows(stream_, from, narrow), dtype = RoundRows(stream_, from, numbers);
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.message(), "round: fp32 [2, 3] cpu to bf16 [2, 2] cpu");
  EXPECT_EQ(dtype.message(), "round: fp32 [2, 3] cpu to int32 [2, 3] cpu");
  EXPECT_TRUE(RoundRows(stream_, from.view().Rows(0, 0), Tensor(DType::kBf16, {0, 3})).ok());
}

}  // namespace
}  // namespace switchyard
