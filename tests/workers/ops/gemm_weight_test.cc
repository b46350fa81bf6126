// Packing: round trips, row ranges, conversions, padding, memory, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/grouped_gemm.h"

namespace switchyard::ops {
namespace {

using testing::HasSubstr;

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16};

TEST(GemmWeightTest, RoundTripInRowRanges) {
  for (DType dtype : kDTypes) {
    for (auto layout : {WeightLayout::kPanels, WeightLayout::kGatedPanels}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2, 1}, {64, 32}, {66, 33}, {130, 95}, {200, 64}}) {
        const Tensor rows = RandomMatrix(dtype, n, k, 1);
        Weight w({.n = n, .k = k, .dtype = dtype, .layout = layout});
        // In ranges that respect neither panels nor the border of gate and up, last first.
        for (int64_t end = n; end > 0; end -= std::min<int64_t>(end, 47)) {
          const int64_t begin = std::max<int64_t>(end - 47, 0);
          ASSERT_TRUE(w.PackRows(begin, rows.view().Rows(begin, end - begin)).ok());
        }
        const Tensor back(dtype, {n, k});
        ASSERT_TRUE(w.UnpackRows(0, back).ok());
        EXPECT_EQ(std::memcmp(back.view().raw(), rows.view().raw(), back.bytes()), 0) << w.desc().ToString();
        const Weight whole = Packed(Stream::OnCpu(std::make_unique<ThreadPool>(1).get()), rows, layout);
        ASSERT_EQ(whole.bytes(), w.bytes());
        EXPECT_EQ(std::memcmp(whole.data(), w.data(), w.bytes()), 0) << w.desc().ToString();
      }
    }
  }
}

TEST(GemmWeightTest, ConvertsWhatItPacks) {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      const Tensor rows = RandomMatrix(from, 35, 21, 1), want(to, {35, 21}), back(to, {35, 21});
      for (int64_t i = 0; i < 35; ++i) {
        for (int64_t j = 0; j < 21; ++j) SetElement(want, i, j, GetElement(rows, i, j));
      }
      Weight w({.n = 35, .k = 21, .dtype = to});
      ASSERT_TRUE(w.PackRows(0, rows).ok());
      ASSERT_TRUE(w.UnpackRows(0, back).ok());
      EXPECT_EQ(std::memcmp(back.view().raw(), want.view().raw(), back.bytes()), 0) << DTypeName(from) << DTypeName(to);
    }
  }
}

TEST(GemmWeightTest, TakesLittleMoreThanTheMatrix) {
  for (DType dtype : kDTypes) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{2048, 2048}, {1408, 2048}, {151936, 2048}, {768, 2048}, {4096, 14336}}) {
      EXPECT_LE(PackedBytes({.n = n, .k = k, .dtype = dtype}), 1.05 * n * k * DTypeBytes(dtype)) << n << "x" << k;
    }
  }
}

TEST(GemmWeightTest, BorrowedMemoryHoldsTheSameForm) {
  const Tensor rows = RandomMatrix(DType::kBf16, 40, 50, 1), back(DType::kBf16, {40, 50});
  const WeightDesc desc = {.n = 40, .k = 50};
  const Buffer memory(PackedBytes(desc), Device::Cpu());
  std::memset(memory.data(), 0x7f, memory.bytes());
  Weight w = Weight::Over(desc, memory.data(), /*packed=*/false);
  ASSERT_TRUE(w.PackRows(0, rows).ok());
  const Weight again = Weight::Over(desc, memory.data(), /*packed=*/true);
  ASSERT_TRUE(again.UnpackRows(0, back).ok());
  EXPECT_EQ(std::memcmp(back.view().raw(), rows.view().raw(), back.bytes()), 0);
  ThreadPool pool(1);
  const Weight owned = Packed(Stream::OnCpu(&pool), rows);
  EXPECT_EQ(std::memcmp(owned.data(), again.data(), owned.bytes()), 0) << "padding must be zero in any memory";
  const Weight moved = std::move(w);
  EXPECT_TRUE(w.empty());  // NOLINT: what a moved-from weight is
  EXPECT_EQ(moved.data(), memory.data());
}

TEST(GemmWeightTest, SaysWhatDoesNotFit) {
  Weight w({.n = 8, .k = 4});
  const Tensor rows(DType::kBf16, {4, 4}), wide(DType::kBf16, {4, 5}), ids(DType::kI32, {4, 4});
  EXPECT_THAT(w.PackRows(5, rows).message(), HasSubstr("rows [5, 9) are not all in bf16 [8, 4]"));
  EXPECT_THAT(w.PackRows(-1, rows).message(), HasSubstr("rows [-1, 3)"));
  EXPECT_THAT(w.PackRows(0, wide).message(), HasSubstr("floating [*, 4], are bf16 [4, 5]"));
  EXPECT_THAT(w.PackRows(0, ids).message(), HasSubstr("are int32 [4, 4]"));
  EXPECT_THAT(w.UnpackRows(0, Tensor(DType::kF32, {4, 4})).message(), HasSubstr("must be bf16, are fp32"));
}

class GemmErrorsTest : public testing::Test {
 protected:
  std::string Message(const TensorView& x, const TensorView& bias, const TensorView& y, bool accumulate = false) {
    const absl::Status status = Gemm(stream_, {.accumulate = accumulate}, x, w_, bias, y);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
  const Weight w_ = Packed(stream_, RandomMatrix(DType::kBf16, 8, 4, 1));
  const Tensor x_{DType::kBf16, {3, 4}}, y_{DType::kBf16, {3, 8}};
};

TEST_F(GemmErrorsTest, NameBothSides) {
  EXPECT_THAT(Message(Tensor(DType::kF32, {3, 4}), {}, Tensor(DType::kF32, {3, 8})),
              HasSubstr("must be fp32 [8, 4], is bf16 [8, 4]"));
  EXPECT_THAT(Message(Tensor(DType::kBf16, {3, 5}), {}, y_), HasSubstr("must be bf16 [8, 5], is bf16 [8, 4]"));
  EXPECT_THAT(Message(Tensor(DType::kBf16, {2, 4}), {}, y_), HasSubstr("x has 2 rows, y 3"));
  EXPECT_THAT(Message(x_, {}, Tensor(DType::kF16, {3, 8})), HasSubstr("y must be a matrix of bf16 or fp32"));
  EXPECT_THAT(Message(x_, Tensor(DType::kBf16, {7}), y_), HasSubstr("bias must be bf16 [8], is bf16 [7]"));
  EXPECT_THAT(Message(x_, {}, y_, /*accumulate=*/true), HasSubstr("y must be fp32 to be added to"));
  EXPECT_THAT(Message(x_, {}, TensorView()), HasSubstr("gemm: "));
  EXPECT_FALSE(GatedGemm(stream_, x_, w_, Tensor(DType::kBf16, {3, 4})).ok()) << "not gated panels";
}

TEST_F(GemmErrorsTest, OfGroups) {
  const Weight* const experts[] = {&w_, nullptr};
  const auto message = [&](std::vector<int32_t> offsets, std::vector<int32_t> rows) {
    return std::string(GroupedGemm(stream_, {.x_rows = rows}, x_, experts, offsets, y_).message());
  };
  EXPECT_EQ(message({0, 3, 3}, {0, 2, 1}), "");
  EXPECT_THAT(message({0, 3}, {}), HasSubstr("offsets must be 3, are 2"));
  EXPECT_THAT(message({0, 3, 2}, {}), HasSubstr("offsets must be from 0 to y's 3 rows, are from 0 to 2"));
  EXPECT_THAT(message({0, 4, 3}, {}), HasSubstr("offsets fall at 1: 4 to 3"));
  EXPECT_THAT(message({0, 2, 3}, {}), HasSubstr("weight 1 has rows but is empty"));
  EXPECT_THAT(message({0, 3, 3}, {0, 3, 1}), HasSubstr("x_rows[1] = 3 is outside [0, 3)"));
  EXPECT_THAT(message({0, 3, 3}, {0, 1}), HasSubstr("x_rows must be 3 numbers on cpu, is 2 on cpu"));
}

TEST(IsaTest, Names) {
  for (int i = 0; i <= static_cast<int>(Isa::kAmx); ++i) {
    EXPECT_EQ(*ParseIsa(IsaName(static_cast<Isa>(i))), static_cast<Isa>(i));
  }
  EXPECT_THAT(ParseIsa("neon").status().message(), HasSubstr("\"neon\" is none of scalar, avx2"));
  EXPECT_LE(CurrentIsa(), DetectedIsa());
}

}  // namespace
}  // namespace switchyard::ops
