// Feed-forwards of the GELU kind: plain products with biases, experts each with its own.
#include <gmock/gmock.h>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/activation/gelu.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kF = 70;  // two whole panels and a part
constexpr int64_t kK = 97;
constexpr int64_t kTokens = 40;

class GeluFfnTest : public testing::TestWithParam<GemmCase> {
 protected:
  void SetUp() override {
    const DType dtype = GetParam().dtype;
    for (uint32_t e = 0; e < 3; ++e) {
      up_.push_back(Packed(stream_, RandomMatrix(dtype, kF, kK, 10 + e)));
      down_.push_back(Packed(stream_, RandomMatrix(dtype, kK, kF, 20 + e)));
      up_bias_.push_back(RandomMatrix(dtype, 1, kF, 30 + e));
      down_bias_.push_back(RandomMatrix(dtype, 1, kK, 40 + e));
    }
    for (int e = 0; e < 3; ++e) {
      ups_.push_back(&up_[e]), downs_.push_back(&down_[e]);
      up_biases_.push_back(up_bias_[e].view().Reshape({kF}));
      down_biases_.push_back(down_bias_[e].view().Reshape({kK}));
    }
  }

  ThreadPool pool_{3, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
  std::vector<Weight> up_, down_;
  std::vector<const Weight*> ups_, downs_;
  std::vector<Tensor> up_bias_, down_bias_;
  std::vector<TensorView> up_biases_, down_biases_;
};

// Each row is what its expert's dense products give for it alone, bit for bit; what training keeps changes nothing.
TEST_P(GeluFfnTest, OfExpertsAreTheirDenseProducts) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1);
  const std::vector<int32_t> offsets = {0, 17, 17, 50};
  std::vector<int32_t> picked(50);
  for (size_t i = 0; i < picked.size(); ++i) picked[i] = static_cast<int32_t>(i * 7 % kTokens);
  for (const Activation kind : {Activation::kGelu, Activation::kGeluTanh}) {
    ExpertFfnDesc desc = {.activation = kind,
                          .gate_up = ups_,
                          .down = downs_,
                          .offsets = offsets,
                          .x_rows = picked,
                          .up_biases = up_biases_,
                          .down_biases = down_biases_,
                          .isa = isa};
    const Tensor hidden(dtype, {50, kF}), bare(dtype, {50, kK}), y(dtype, {50, kK}), sums(dtype, {50, kF});
    ASSERT_TRUE(ExpertFfn(stream_, desc, x, hidden, bare).ok());
    desc.sums = sums;
    ASSERT_TRUE(ExpertFfn(stream_, desc, x, hidden, y).ok());
    EXPECT_EQ(std::memcmp(y.view().raw(), bare.view().raw(), y.bytes()), 0);
    for (int e = 0; e < 3; ++e) {
      for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const Tensor one_sums(dtype, {1, kF}), one_hidden(dtype, {1, kF}), one(dtype, {1, kK});
        const TensorView row = x.view().Rows(picked[i], 1);
        ASSERT_TRUE(Gemm(stream_, {.isa = isa}, row, up_[e], up_biases_[e], one_sums).ok());
        ASSERT_TRUE(Gelu(stream_, kind, one_sums, one_hidden).ok());
        ASSERT_TRUE(Gemm(stream_, {.isa = isa}, one_hidden, down_[e], down_biases_[e], one).ok());
        ASSERT_TRUE(SameRow(sums, i, one_sums, 0)) << "sums of row " << i;
        ASSERT_TRUE(SameRow(y, i, one, 0)) << "row " << i;
      }
    }
  }
}

TEST_P(GeluFfnTest, DenseAddsToTheResidual) {
  const auto [isa, dtype] = GetParam();
  if (isa != CurrentIsa()) GTEST_SKIP() << "takes the machine's";
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1), hidden(dtype, {kTokens, kF}), kept(dtype, {kTokens, kF});
  const Tensor residual = RandomMatrix(AccDType(dtype), kTokens, kK, 2), want(AccDType(dtype), {kTokens, kK});
  std::memcpy(want.view().raw(), residual.view().raw(), want.bytes());
  const DenseFfnDesc desc = {.activation = Activation::kGeluTanh,
                             .gate_up = ups_[1],
                             .down = downs_[1],
                             .up_bias = up_biases_[1],
                             .down_bias = down_biases_[1],
                             .sums = kept};
  ASSERT_TRUE(DenseFfn(stream_, desc, x, hidden, residual).ok());
  ASSERT_TRUE(Gemm(stream_, {}, x, up_[1], up_biases_[1], kept).ok());
  ASSERT_TRUE(Gelu(stream_, desc.activation, kept, hidden).ok());
  ASSERT_TRUE(Gemm(stream_, {.accumulate = true}, hidden, down_[1], down_biases_[1], want).ok());
  EXPECT_EQ(std::memcmp(residual.view().raw(), want.view().raw(), want.bytes()), 0);
}

TEST_P(GeluFfnTest, MisfitsAreNamed) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, 2, kK, 1), y(dtype, {2, kF}), hidden(dtype, {2, kF});
  const absl::Span<const Weight* const> one = absl::MakeConstSpan(ups_).subspan(0, 1);
  const auto message = [&](absl::Span<const TensorView> biases) {
    const absl::Status status = GroupedGemm(stream_, {.biases = biases, .isa = isa}, x, one, {0, 2}, y);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(up_biases_), testing::HasSubstr("3 biases for 1 weights"));
  EXPECT_THAT(message(absl::MakeConstSpan(down_biases_).subspan(0, 1)), testing::HasSubstr("bias must be"));
  const absl::Status some = ExpertFfn(stream_,
                                      {.activation = Activation::kGelu,
                                       .gate_up = one,
                                       .down = absl::MakeConstSpan(downs_).subspan(0, 1),
                                       .offsets = {0, 2},
                                       .partial = true,
                                       .isa = isa},
                                      x, hidden, Tensor(dtype, {2, kK}));
  EXPECT_EQ(some.code(), absl::StatusCode::kUnimplemented);
}

INSTANTIATE_TEST_SUITE_P(Kernels, GeluFfnTest, testing::ValuesIn(AllGemmCases()), CaseName);

}  // namespace
}  // namespace switchyard::ops
