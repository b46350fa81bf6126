// Weights with a bias of their own, and the clamped SwiGLU that gpt-oss has with it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::ops {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kF = 70;  // two whole panels and a part
constexpr int64_t kK = 97;
constexpr int64_t kTokens = 40;
constexpr GluClamp kClamp = {.alpha = 1.702, .limit = 1.5};

class WeightBiasTest : public testing::TestWithParam<GemmFormatCase> {
 protected:
  // The same matrix with and without its bias.
  Weight Pack(const TensorView& rows, const TensorView& bias, WeightLayout layout) const {
    Weight weight({.n = rows.dim(0),
                   .k = rows.dim(1),
                   .dtype = rows.dtype(),
                   .layout = layout,
                   .format = GetParam().format,
                   .bias = bias.raw() != nullptr});
    SY_CHECK_OK(weight.PackRows(0, rows));
    if (bias.raw() != nullptr) SY_CHECK_OK(weight.PackBias(0, bias));
    return weight;
  }
  double Tolerance() const { return GetParam().dtype == DType::kBf16 ? 2e-2 : 4e-3; }

  ThreadPool pool_{3, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
};

TEST_P(WeightBiasTest, IsAddedAsABiasOfTheProductIs) {
  const auto [isa, dtype, format] = GetParam();
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1), w = RandomMatrix(dtype, kF, kK, 2),
               bias = RandomMatrix(dtype, kF, 1, 3);
  const Weight own = Pack(w, bias, WeightLayout::kPanels), bare = Pack(w, {}, WeightLayout::kPanels);
  EXPECT_GE(own.bytes(), bare.bytes() + kF * DTypeBytes(dtype));
  const Tensor y(dtype, {kTokens, kF}), want(dtype, {kTokens, kF});
  ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, own, TensorView(), y).ok());
  ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, bare, bias.view().Reshape({kF}), want).ok());
  EXPECT_EQ(std::memcmp(y.view().raw(), want.view().raw(), want.bytes()), 0);
  // Over memory that was copied, as slots and files have it.
  Buffer copy(own.bytes(), Device::Cpu());
  std::memcpy(copy.data(), own.data(), static_cast<size_t>(own.bytes()));
  const Weight over = Weight::Over(own.desc(), copy.data(), /*packed=*/true);
  std::memset(y.view().raw(), 0, y.bytes());
  ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, over, TensorView(), y).ok());
  EXPECT_EQ(std::memcmp(y.view().raw(), want.view().raw(), want.bytes()), 0);
}

// Sums and biases in double, from plain products of each half.
TEST_P(WeightBiasTest, GatedAndClamped) {
  const auto [isa, dtype, format] = GetParam();
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1), w = RandomMatrix(dtype, 2 * kF, kK, 2),
               bias = RandomMatrix(dtype, 2 * kF, 1, 3);
  const Weight gated = Pack(w, bias, WeightLayout::kGatedPanels), plain = Pack(w, {}, WeightLayout::kPanels);
  const Weight* const group[] = {&gated};
  const std::vector<int32_t> offsets = {0, kTokens};
  const Tensor sums(AccDType(dtype), {kTokens, 2 * kF});
  ASSERT_TRUE(Gemm(stream_, {.isa = isa}, x, plain, TensorView(), sums).ok());
  for (const GluClamp& clamp : {kClamp, GluClamp()}) {
    const Tensor y(dtype, {kTokens, kF});
    const absl::Status status = GroupedGatedGemm(stream_, {.clamp = clamp, .isa = isa}, x, group, offsets, y);
    ASSERT_TRUE(status.ok()) << status;
    int64_t beyond = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t f = 0; f < kF; ++f) {
        double gate = GetElement(sums, i, f) + GetElement(bias, f, 0);
        double up = GetElement(sums, i, kF + f) + GetElement(bias, kF + f, 0);
        beyond += gate > kClamp.limit || std::abs(up) > kClamp.limit;
        if (clamp.limit > 0) gate = std::min(gate, clamp.limit), up = std::clamp(up, -clamp.limit, clamp.limit) + 1;
        const double want = gate / (1 + std::exp(-clamp.alpha * gate)) * up;
        ASSERT_NEAR(GetElement(y, i, f), want, Tolerance() * std::max(1.0, std::abs(want))) << i << ", " << f;
      }
    }
    EXPECT_GT(beyond, kTokens) << "the limit binds";
  }
}

TEST_P(WeightBiasTest, NotANumberStaysOne) {
  const auto [isa, dtype, format] = GetParam();
  const Tensor x = RandomMatrix(dtype, 1, kK, 1), w = RandomMatrix(dtype, 2 * kF, kK, 2),
               bias = RandomMatrix(dtype, 2 * kF, 1, 3);
  SetElement(bias, 3, 0, std::nan("")), SetElement(bias, kF + 5, 0, std::nan(""));
  const Weight gated = Pack(w, bias, WeightLayout::kGatedPanels);
  const Weight* const group[] = {&gated};
  const Tensor y(dtype, {1, kF});
  ASSERT_TRUE(GroupedGatedGemm(stream_, {.clamp = kClamp, .isa = isa}, x, group, std::vector<int32_t>{0, 1}, y).ok());
  for (int64_t f = 0; f < kF; ++f) EXPECT_EQ(std::isnan(GetElement(y, 0, f)), f == 3 || f == 5) << f;
}

INSTANTIATE_TEST_SUITE_P(All, WeightBiasTest, testing::ValuesIn(AllGemmFormatCases()), FormatCaseName);

TEST(WeightBiasTest, MisfitsAreNamed) {
  ThreadPool pool(1, /*spin=*/false);
  const Stream stream = Stream::OnCpu(&pool);
  Weight with({.n = 4, .k = 8, .dtype = DType::kF32, .bias = true}), without({.n = 4, .k = 8, .dtype = DType::kF32});
  EXPECT_EQ(with.desc().ToString(), "fp32 [4, 8] with bias");
  EXPECT_THAT(std::string(with.PackBias(2, Tensor(DType::kF32, {3, 1})).message()),
              HasSubstr("PackBias: elements from 2 on of fp32 [4, 8] with bias"));
  const Tensor x = RandomMatrix(DType::kF32, 2, 8, 1), y(DType::kF32, {2, 4}), bias(DType::kF32, {4});
  EXPECT_THAT(std::string(Gemm(stream, {}, x, with, bias, y).message()), HasSubstr("and another bias"));
  const Weight* const mixed[] = {&with, &without};
  EXPECT_THAT(std::string(GroupedGemm(stream, {}, x, mixed, std::vector<int32_t>{0, 1, 2}, y).message()),
              HasSubstr("weight 1 is fp32 [4, 8], those before it fp32 [4, 8] with bias"));
  Weight gated({.n = 8, .k = 8, .dtype = DType::kF32, .layout = WeightLayout::kGatedPanels, .bias = true});
  EXPECT_THAT(std::string(GatedGemm(stream, x, gated, y, CurrentIsa(), Tensor(DType::kF32, {2, 8})).message()),
              HasSubstr("sums that are kept"));
  const Weight* const group[] = {&gated};
  EXPECT_THAT(
      std::string(
          GroupedGatedGemm(stream, {.clamp = {.limit = -1}}, x, group, std::vector<int32_t>{0, 2}, y).message()),
      HasSubstr("limit -1 and alpha 1 of a gated product"));
}

}  // namespace
}  // namespace switchyard::ops
