// The sums of a gated product that training keeps: gate and up before the activation.
#include <gmock/gmock.h>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kF = 70;  // two whole panels and a part
constexpr int64_t kK = 97;
constexpr int64_t kTokens = 40;

class GatedSumsTest : public testing::TestWithParam<GemmCase> {
 protected:
  // rows · wᵀ, without gates: the same sums in the same order.
  Tensor Plain(const TensorView& x, const TensorView& w) {
    Tensor y(x.dtype(), {x.dim(0), w.dim(0)});
    SY_CHECK_OK(Gemm(stream_, {.isa = GetParam().isa}, x, Packed(stream_, w), TensorView(), y));
    return y;
  }

  ThreadPool pool_{3, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
};

TEST_P(GatedSumsTest, AreTheTwoProducts) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1), w = RandomMatrix(dtype, 2 * kF, kK, 2);
  const Weight packed = Packed(stream_, w, WeightLayout::kGatedPanels);
  const Tensor wide = RandomMatrix(dtype, kTokens, 2 * kF + 6, 3), hidden(dtype, {kTokens, kF}),
               bare(dtype, {kTokens, kF});
  const TensorView sums = wide.view().Columns(3, 2 * kF);
  const double left = GetElement(wide, 7, 2), right = GetElement(wide, 7, 2 * kF + 3);
  ASSERT_TRUE(GatedGemm(stream_, x, packed, hidden, isa, sums).ok());
  ASSERT_TRUE(GatedGemm(stream_, x, packed, bare, isa).ok());
  EXPECT_EQ(std::memcmp(hidden.view().raw(), bare.view().raw(), bare.bytes()), 0) << "keeping sums changed hidden";
  const Tensor want = Plain(x, w);
  for (int64_t i = 0; i < kTokens; ++i) ASSERT_TRUE(SameRow(sums, i, want, i)) << "row " << i;
  EXPECT_EQ(GetElement(wide, 7, 2), left);
  EXPECT_EQ(GetElement(wide, 7, 2 * kF + 3), right);
}

TEST_P(GatedSumsTest, OfExperts) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, kTokens, kK, 1);
  const std::vector<int32_t> offsets = {0, 17, 17, 50}, picked = [] {
    std::vector<int32_t> rows(50);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i * 7 % kTokens);
    return rows;
  }();
  std::vector<Tensor> rows;
  std::vector<Weight> gate_up, down;
  for (uint32_t e = 0; e < 3; ++e) {
    rows.push_back(RandomMatrix(dtype, 2 * kF, kK, 10 + e));
    gate_up.push_back(Packed(stream_, rows.back(), WeightLayout::kGatedPanels));
    down.push_back(Packed(stream_, RandomMatrix(dtype, kK, kF, 20 + e)));
  }
  const std::vector<const Weight*> gates = {&gate_up[0], &gate_up[1], &gate_up[2]};
  const std::vector<const Weight*> downs = {&down[0], &down[1], &down[2]};
  ExpertFfnDesc desc = {.gate_up = gates, .down = downs, .offsets = offsets, .x_rows = picked, .isa = isa};
  const Tensor hidden(dtype, {50, kF}), y(dtype, {50, kK}), bare_y(dtype, {50, kK}), sums(dtype, {50, 2 * kF});
  ASSERT_TRUE(ExpertFfn(stream_, desc, x, hidden, bare_y).ok());
  desc.sums = sums;
  ASSERT_TRUE(ExpertFfn(stream_, desc, x, hidden, y).ok());
  EXPECT_EQ(std::memcmp(y.view().raw(), bare_y.view().raw(), y.bytes()), 0);
  for (int e = 0; e < 3; ++e) {
    for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
      ASSERT_TRUE(SameRow(sums, i, Plain(x.view().Rows(picked[i], 1), rows[e]), 0)) << "row " << i;
    }
  }
}

TEST_P(GatedSumsTest, MisfitsAreNamed) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, 2, kK, 1), hidden(dtype, {2, kF}), narrow(dtype, {2, kF});
  const Weight gated = Packed(stream_, RandomMatrix(dtype, 2 * kF, kK, 2), WeightLayout::kGatedPanels);
  const absl::Status status = GatedGemm(stream_, x, gated, hidden, isa, narrow);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("sums must be"));
  const Weight plain = Packed(stream_, RandomMatrix(dtype, kF, kK, 2));
  const Weight* const experts[] = {&plain};
  const absl::Status ungated = GroupedGemm(stream_, {.sums = narrow, .isa = isa}, x, experts, {0, 2}, hidden);
  EXPECT_THAT(std::string(ungated.message()), testing::HasSubstr("gated products alone"));
}

INSTANTIATE_TEST_SUITE_P(Kernels, GatedSumsTest, testing::ValuesIn(AllGemmCases()), CaseName);

}  // namespace
}  // namespace switchyard::ops
