#include "workers/ops/optimizer/adamw.h"

#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

Tensor Row(DType dtype, const std::vector<double>& values) {
  Tensor t(dtype, {1, static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) Set(t, 0, static_cast<int64_t>(i), values[i]);
  return t;
}

class AdamWTest : public OpTest {};

// torch.optim.AdamW(lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1) in float64, as torch 2 printed it.
TEST_P(AdamWTest, FollowsPyTorch) {
  const Tensor p = Row(dtype(), {1.0, -2.0, 0.5, 0.0}), m = Tensor::Zeros(dtype(), {1, 4}),
               v = Tensor::Zeros(dtype(), {1, 4});
  const std::vector<std::vector<double>> gradients = {
      {0.1, -0.2, 3.0, 0.0}, {0.3, 0.4, -1.0, 1e-5}, {-0.5, 0.25, 0.125, -2e-5}};
  const std::vector<std::vector<double>> want = {
      {0.989000099999, -1.98800004999975, 0.4895000033333322, 0.0},
      {0.9789242187289711, -1.9896457780510508, 0.4849674381385459, -0.006449040523776236},
      {0.9795273371469778, -1.993233503490182, 0.4810610683879242, -0.003578697846105113}};
  const double unit = dtype() == DType::kF64 ? 1e-14 : 3e-7;
  for (int64_t step = 1; step <= 3; ++step) {
    // Gradients come four times as large and are scaled.
    std::vector<double> large = gradients[step - 1];
    for (double& g : large) g *= 4;
    ASSERT_TRUE(AdamWStep(stream(),
                          {.step = step,
                           .lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-6,
                           .weight_decay = 0.1,
                           .gradient_scale = 0.25},
                          {p, m, v, Row(dtype(), large)})
                    .ok());
    ExpectNear(RowOf(p, 0), want[step - 1], {unit}, absl::StrCat("step ", step));
  }
  ExpectNear(RowOf(m, 0), {-0.014899999999999998, 0.0448, 0.1655, -1.1e-6}, {unit}, "m");
  ExpectNear(RowOf(v, 0), {0.01722625, 0.01253, 0.45440625, 2.475e-11}, {unit}, "v");
}

// Cut anywhere, on any number of threads: the same bits.
TEST_P(AdamWTest, CutsAndThreadsDoNotMatter) {
  constexpr int64_t kCount = 100003;
  const Tensor start = RandomMatrix(dtype(), 1, kCount, 1), gradient = RandomMatrix(dtype(), 1, kCount, 2);
  const auto run = [&](const Stream& stream, const std::vector<int64_t>& cuts) {
    Tensor p = Copy(start), m = Copy(gradient), v = Tensor::Zeros(dtype(), {1, kCount});
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const Tensor& t) { return t.view().Columns(cuts[i], cuts[i + 1] - cuts[i]); };
      EXPECT_TRUE(
          AdamWStep(stream, {.step = 3, .weight_decay = 0.1}, {part(p), part(m), part(v), part(gradient)}).ok());
    }
    return p;
  };
  const Tensor whole = run(stream(), {0, kCount});
  EXPECT_TRUE(SameBits(run(stream(), {0, 1, 17, 5000, 5003, kCount}), 0, whole));
  ExpectThreadsDoNotMatter([&](const Stream& stream) { return run(stream, {0, kCount}); });
}

TEST_P(AdamWTest, SumOfSquaresMatchesReference) {
  for (int64_t count : {0, 1, 31, 33, 4096, 4097, 50001}) {
    const Tensor x = RandomMatrix(dtype(), 1, count, 1);
    double want = 0;
    for (double value : RowOf(x, 0)) want += value * value;
    const absl::StatusOr<double> got = SumOfSquares(stream(), x);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_NEAR(*got, want, 1e-13 * want) << count;
    ExpectThreadsDoNotMatter([&](const Stream& stream) {
      Tensor sum(DType::kF64, {1});
      sum.data<double>()[0] = SumOfSquares(stream, x).value();
      return sum;
    });
  }
}

// A rank that has some of the blocks computes the sums that a rank with all computes.
TEST_P(AdamWTest, SumsOfBlocksAreThoseOfTheWhole) {
  constexpr int64_t kCount = 5 * kNormBlock + 77, kBlocks = 6;
  const Tensor x = RandomMatrix(dtype(), 1, kCount, 1);
  const TensorView flat = x.view().Reshape({kCount});
  double whole[kBlocks], parts[kBlocks];
  ASSERT_TRUE(SumsOfSquares(stream(), flat, absl::MakeSpan(whole, kBlocks)).ok());
  ASSERT_TRUE(SumsOfSquares(stream(), flat.Rows(0, 2 * kNormBlock), absl::MakeSpan(parts, 2)).ok());
  const TensorView rest = flat.Rows(2 * kNormBlock, kCount - 2 * kNormBlock);
  ASSERT_TRUE(SumsOfSquares(stream(), rest, absl::MakeSpan(parts + 2, kBlocks - 2)).ok());
  double sum = 0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(parts[i], whole[i]) << i;
    sum += whole[i];
  }
  EXPECT_EQ(SumOfSquares(stream(), x).value(), sum);
}

TEST_P(AdamWTest, MisfitsAreNamed) {
  const Tensor t(dtype(), {2, 4}), other(dtype(), {2, 3}), half(DType::kBf16, {2, 4});
  ExpectNames(AdamWStep(stream(), {.step = 0}, {t, t, t, t}), "step must be at least 1");
  ExpectNames(AdamWStep(stream(), {.beta2 = 1}, {t, t, t, t}), "0.9 and 1");
  ExpectNames(AdamWStep(stream(), {}, {t, t, other, t}), "v must be");
  ExpectNames(AdamWStep(stream(), {}, {half, half, half, half}), "parameter must be contiguous fp32 or fp64");
  ExpectNames(SumOfSquares(stream(), t.view().Columns(1, 2)).status(), "rows 4 apart");
}

SY_INSTANTIATE_OP_TEST(AdamWTest, kAccDTypes);

}  // namespace
}  // namespace switchyard::ops
