#include "workers/ops/gemm/backward/weight_gradient.h"

#include <gmock/gmock.h>

#include "tests/reference/gemm.h"
#include "tests/workers/ops/gemm_testing.h"

namespace switchyard::ops {
namespace {

Tensor Copied(const TensorView& from) {
  Tensor to(from.dtype(), from.shape());
  std::memcpy(to.view().raw(), from.raw(), to.bytes());
  return to;
}

// dyᵀ as the reference's left side.
std::vector<double> Turned(const TensorView& x) {
  std::vector<double> out;
  for (int64_t j = 0; j < x.dim(1); ++j) {
    for (int64_t i = 0; i < x.dim(0); ++i) out.push_back(GetElement(x, i, j));
  }
  return out;
}

class WeightGradientTest : public testing::TestWithParam<GemmCase> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  Isa isa() const { return GetParam().isa; }

  Tensor Gradient(const Stream& stream, const TensorView& dy, const TensorView& x, const TensorView& start) {
    Tensor gradient = Copied(start);
    const absl::Status status = WeightGradient(stream, dy, x, gradient, isa());
    EXPECT_TRUE(status.ok()) << status;
    return gradient;
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
};

TEST_P(WeightGradientTest, AddsWhatTheReferenceAdds) {
  for (int64_t m : {0, 1, 2, 31, 33, 512, 513, 1100}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {13, 33}, {70, 97}, {33, 32}}) {
      const Tensor dy = RandomMatrix(dtype(), m, n, 1), x = RandomMatrix(dtype(), m, k, 2);
      const Tensor start = RandomMatrix(AccDType(dtype()), n, k, 3);
      const Tensor got = Gradient(stream_, dy, x, start);
      const reference::Product want = reference::Gemm(Turned(dy), Turned(x), n, k, m);
      for (int64_t i = 0; i < n * k; ++i) {
        const double begin = ToDoubles(start.view().Rows(i / k, 1))[i % k];
        const double unit = Epsilon(AccDType(dtype())) * (want.magnitude[i] + std::fabs(begin));
        // vdpbf16ps and AMX add pairs, so their roundings are no more than one an addition.
        ASSERT_NEAR(GetElement(got, i / k, i % k), begin + want.y[i], 2 * std::sqrt(m + 4.0) * unit + 1e-30)
            << "m " << m << " n " << n << " k " << k << " at " << i;
      }
    }
  }
}

TEST_P(WeightGradientTest, ThreadsAndStridesDoNotMatter) {
  const int64_t m = 700, n = 150, k = 530;
  const Tensor wide_dy = RandomMatrix(dtype(), m, n + 9, 1), wide_x = RandomMatrix(dtype(), m, k + 7, 2);
  const TensorView dy = wide_dy.view().Columns(4, n), x = wide_x.view().Columns(5, k);
  Tensor dense_dy(dtype(), {m, n}), dense_x(dtype(), {m, k});
  for (int64_t i = 0; i < m; ++i) {
    std::memcpy(dense_dy.view().Rows(i, 1).raw(), dy.Rows(i, 1).raw(), n * DTypeBytes(dtype()));
    std::memcpy(dense_x.view().Rows(i, 1).raw(), x.Rows(i, 1).raw(), k * DTypeBytes(dtype()));
  }
  const Tensor start = RandomMatrix(AccDType(dtype()), n, k, 3);
  const Tensor want = Gradient(stream_, dense_dy, dense_x, start);
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, /*spin=*/false);
    const Tensor got = Gradient(Stream::OnCpu(&pool), dy, x, start);
    ASSERT_EQ(std::memcmp(got.view().raw(), want.view().raw(), got.bytes()), 0) << threads << " threads";
  }
}

TEST_P(WeightGradientTest, GroupsAreTheirExpertsAlone) {
  constexpr int kExperts = 5;
  constexpr int64_t kN = 45, kK = 70, kTokens = 90;
  const Tensor x = RandomMatrix(dtype(), kTokens, kK, 1), dy_all = RandomMatrix(dtype(), 700, kN, 2);
  const Tensor start = RandomMatrix(AccDType(dtype()), kN, kK, 3);
  std::mt19937 rng(5);
  ThreadPool pool(3, /*spin=*/false);
  for (const std::vector<int32_t>& offsets : std::vector<std::vector<int32_t>>{
           {0, 0, 600, 600, 601, 640}, {0, 1, 2, 3, 4, 5}, {0, 0, 0, 0, 0, 0}, {0, 17, 17, 50, 83, 700}}) {
    std::vector<int32_t> picked(offsets.back());
    for (int32_t& row : picked) row = static_cast<int32_t>(rng() % kTokens);
    const TensorView dy = dy_all.view().Rows(0, offsets.back());
    std::vector<Tensor> owned;
    std::vector<TensorView> gradients;
    for (int e = 0; e < kExperts; ++e) {
      owned.push_back(Copied(start));
      gradients.push_back(offsets[e] == offsets[e + 1] ? TensorView() : owned[e].view());
    }
    const absl::Status status = GroupedWeightGradient(
        Stream::OnCpu(&pool), {.offsets = offsets, .x_rows = picked, .isa = isa()}, dy, x, gradients);
    ASSERT_TRUE(status.ok()) << status;
    for (int e = 0; e < kExperts; ++e) {
      const int64_t rows = offsets[e + 1] - offsets[e];
      Tensor chosen(dtype(), {rows, kK});
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(chosen.view().Rows(i, 1).raw(), x.view().Rows(picked[offsets[e] + i], 1).raw(),
                    kK * DTypeBytes(dtype()));
      }
      const Tensor alone = Gradient(stream_, dy.Rows(offsets[e], rows), chosen, start);
      ASSERT_EQ(std::memcmp(owned[e].view().raw(), alone.view().raw(), alone.bytes()), 0) << "expert " << e;
    }
  }
}

TEST_P(WeightGradientTest, MisfitsAreNamed) {
  const DType acc = AccDType(dtype());
  const Tensor dy(dtype(), {4, 3}), x(dtype(), {4, 5}), gradient = Tensor::Zeros(acc, {3, 5});
  const auto expect = [&](const absl::Status& status, const char* says) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(says));
  };
  expect(WeightGradient(stream_, dy, Tensor(dtype(), {5, 5}), gradient, isa()), "x has 5 rows, dy 4");
  expect(WeightGradient(stream_, dy, x, Tensor(acc, {5, 3}), isa()), "[3, 5]");
  expect(WeightGradient(stream_, dy, Tensor(DType::kI32, {4, 5}), gradient, isa()), "x must be");
  const Tensor others[] = {Tensor(acc, {3, 5}), Tensor(acc, {3, 5})};
  const TensorView two[] = {others[0].view(), others[1].view()}, one_wrong[] = {others[0].view(), dy};
  const auto grouped = [&](std::vector<int32_t> offsets, std::vector<int32_t> rows, absl::Span<const TensorView> to) {
    return GroupedWeightGradient(stream_, {.offsets = offsets, .x_rows = rows, .isa = isa()}, dy, x, to);
  };
  expect(grouped({0, 4}, {}, two), "offsets must be 3 numbers");
  expect(grouped({0, 3, 3}, {}, two), "from 0 to dy's 4 rows, are from 0 to 3");
  expect(grouped({0, 5, 4}, {}, two), "offsets fall at 1: 5 to 4");
  expect(grouped({0, 1, 4}, {0, 1, 2, 4}, two), "x_rows[3] = 4");
  expect(grouped({0, 1, 4}, {}, one_wrong), "gradient 1 must be");
}

// Of what is frozen none is computed; the others' bits do not change.
TEST_P(WeightGradientTest, NoGradientWhereNoneIsWanted) {
  const Tensor dy = RandomMatrix(dtype(), 30, 19, 1), x = RandomMatrix(dtype(), 30, 23, 2);
  const Tensor start = RandomMatrix(AccDType(dtype()), 19, 23, 3);
  const std::vector<int32_t> offsets = {0, 11, 20, 30};
  std::vector<Tensor> all, some;
  for (int e = 0; e < 3; ++e) {
    all.push_back(Copied(start));
    some.push_back(Copied(start));
  }
  const GroupedWeightGradientDesc desc = {.offsets = offsets, .isa = isa()};
  const TensorView wanted[] = {all[0].view(), all[1].view(), all[2].view()};
  const TensorView without[] = {some[0].view(), TensorView(), some[2].view()}, none[] = {{}, {}, {}};
  ASSERT_TRUE(GroupedWeightGradient(stream_, desc, dy, x, wanted).ok());
  ASSERT_TRUE(GroupedWeightGradient(stream_, desc, dy, x, without).ok());
  ASSERT_TRUE(GroupedWeightGradient(stream_, desc, dy, x, none).ok());
  ASSERT_TRUE(WeightGradient(stream_, dy, x, TensorView(), isa()).ok());
  for (const int e : {0, 2}) {
    EXPECT_EQ(std::memcmp(all[e].view().raw(), some[e].view().raw(), static_cast<size_t>(all[e].bytes())), 0) << e;
  }
  EXPECT_NE(std::memcmp(all[1].view().raw(), some[1].view().raw(), static_cast<size_t>(all[1].bytes())), 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, WeightGradientTest, testing::ValuesIn(AllGemmCases()), CaseName);

}  // namespace
}  // namespace switchyard::ops
