// Rows and the fading mean of their texts, on the test's device against the sum that the recursion stands for.
#include "workers/ops/embedding/fading_sum.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/int_view.h"

namespace switchyard::ops {
namespace {

using testing::HasSubstr;

constexpr double kKept = 0.8;
constexpr int64_t kRectified = 5;

class FadingSumTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
    stream_ = std::make_unique<TestStream>();
  }
  // Texts of 1, 3, 70 and then 150 rows over and over.
  static std::vector<int32_t> Begins(int64_t rows) {
    std::vector<int32_t> begins(static_cast<size_t>(rows));
    const int64_t lengths[] = {1, 3, 70, 150};
    for (int64_t t = 0, i = 0; t < rows; t += lengths[i++ % 4]) begins[static_cast<size_t>(t)] = 1;
    return begins;
  }
  Tensor Ints(const std::vector<int32_t>& numbers) const {
    Tensor host(DType::kI32, {static_cast<int64_t>(numbers.size())});
    std::copy(numbers.begin(), numbers.end(), host.data<int32_t>());
    return *CopyToDevice(*stream_, host);
  }

  std::unique_ptr<TestStream> stream_;
};

TEST_F(FadingSumTest, OwnRowsAndTheMeanOfTheTextSoFar) {
  for (const DType dtype : kAccDTypes) {
    for (const int64_t rows : {0, 1, 63, 64, 65, 300}) {
      const int64_t experts = 37;
      const std::vector<int32_t> begins = Begins(rows);
      const Tensor both = RandomMatrix(dtype, rows, 2 * experts, 5);
      const Tensor there = *CopyToDevice(*stream_, both), starts = Ints(begins);
      const Tensor sum = *Tensor::Allocate(dtype, {rows, experts}, TestDevice());
      ASSERT_TRUE(AddFadingMean(*stream_, {.kept = kKept, .rectified = kRectified}, there, IntView(starts), sum).ok());
      const Tensor got = *CopyToHost(*stream_, sum);
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t e = 0; e < experts; ++e) {
          double mean = 0, weight = 1;
          int64_t at = t;
          for (; at > 0 && begins[static_cast<size_t>(at)] == 0; --at, weight *= kKept) {
            mean += (1 - kKept) * weight * Get(both, at, experts + e);
          }
          mean += weight * Get(both, at, experts + e);
          // Beyond the reach rows weigh 1e-6 together.
          const double plain = Get(both, t, e) + mean, wanted = e < experts - kRectified ? plain : std::max(0.0, plain);
          ASSERT_NEAR(Get(got, t, e), wanted, 1e-5) << DTypeName(dtype) << " row " << t << " " << e;
        }
      }
    }
  }
}

TEST_F(FadingSumTest, WhatDoesNotFitIsNamed) {
  const Tensor both = *CopyToDevice(*stream_, RandomMatrix(DType::kF32, 4, 6, 1));
  const Tensor sum = *Tensor::Allocate(DType::kF32, {4, 3}, TestDevice());
  const Tensor wide = *Tensor::Allocate(DType::kF32, {4, 4}, TestDevice()), starts = Ints({1, 0, 0, 0});
  const auto message = [&](const FadingSumDesc& desc, const TensorView& to, const IntView& begins) {
    return std::string(AddFadingMean(*stream_, desc, both, begins, to).message());
  };
  EXPECT_THAT(message({.kept = kKept}, wide, IntView(starts)), HasSubstr("fading_sum: both must be fp32 [4, 8]"));
  EXPECT_THAT(message({.kept = kKept}, sum, IntView(starts).Part(0, 3)), HasSubstr("fading_sum: begins"));
  EXPECT_THAT(message({.kept = 1}, sum, IntView(starts)), HasSubstr("kept must be within [0, 1), is 1"));
  EXPECT_THAT(message({.rectified = 4}, sum, IntView(starts)), HasSubstr("rectified must be within [0, 3], is 4"));
}

}  // namespace
}  // namespace switchyard::ops
