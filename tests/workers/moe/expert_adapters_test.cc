// Adapters of experts against naive sums in double: what they add to outputs and to gradients, of experts with many
// rows, one row and none.
#include "workers/moe/layer/expert_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/reference/row_ops.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/backward/transposed_weight.h"

namespace switchyard::moe {
namespace {

using ops::GetElement;

constexpr int64_t kExperts = 4, kRank = 3, kIn = 20, kOut = 14, kTokens = 9;
constexpr double kScale = 0.75;
const std::vector<int32_t>& Offsets() {
  static const std::vector<int32_t> offsets = {0, 5, 5, 6, 13};
  return offsets;
}
const std::vector<int32_t>& Picked() {
  static const std::vector<int32_t> rows = {0, 2, 3, 5, 8, 1, 0, 1, 2, 4, 6, 7, 8};
  return rows;
}

using Matrix = std::function<double(int64_t i, int64_t j)>;

class ExpertAdaptersTest : public testing::TestWithParam<DType> {
 protected:
  ExpertAdaptersTest() {
    for (uint32_t e = 0; e < kExperts; ++e) {
      Make(e, kRank, kIn, &a_rows_, &adapters_.a, &trained_.a_transposed, &trained_.a_gradients);
      Make(e + 10, kOut, kRank, &b_rows_, &adapters_.b, &trained_.b_transposed, &trained_.b_gradients);
    }
    adapters_.scale = kScale;
  }

  static DType dtype() { return GetParam(); }
  static double tolerance() { return dtype() == DType::kF64 ? 1e-13 : dtype() == DType::kF32 ? 1e-5 : 4e-2; }
  static int64_t rows() { return static_cast<int64_t>(Picked().size()); }
  static size_t ExpertOf(int64_t row) {
    size_t e = 0;
    while (Offsets()[e + 1] <= row) ++e;
    return e;
  }
  double A(size_t e, int64_t j, int64_t k) const { return GetElement(a_rows_[e], j, k); }
  double B(size_t e, int64_t n, int64_t j) const { return GetElement(b_rows_[e], n, j); }

  // Of a row of the expert's: scale * Aᵀ x, and scale * Bᵀ dy.
  std::vector<double> U(size_t e, const Matrix& x, int64_t row) const {
    std::vector<double> u(kRank, 0.0);
    for (int64_t j = 0; j < kRank; ++j) {
      for (int64_t k = 0; k < kIn; ++k) u[static_cast<size_t>(j)] += kScale * A(e, j, k) * x(row, k);
    }
    return u;
  }
  std::vector<double> Du(size_t e, const Matrix& dy, int64_t row) const {
    std::vector<double> du(kRank, 0.0);
    for (int64_t j = 0; j < kRank; ++j) {
      for (int64_t n = 0; n < kOut; ++n) du[static_cast<size_t>(j)] += kScale * B(e, n, j) * dy(row, n);
    }
    return du;
  }
  static void ExpectMatrix(const TensorView& actual, const Matrix& wanted, const std::string& what) {
    double largest = 1;
    for (int64_t i = 0; i < actual.dim(0); ++i) {
      for (int64_t j = 0; j < actual.dim(1); ++j) largest = std::max(largest, std::abs(wanted(i, j)));
    }
    for (int64_t i = 0; i < actual.dim(0); ++i) {
      for (int64_t j = 0; j < actual.dim(1); ++j) {
        ASSERT_NEAR(GetElement(actual, i, j), wanted(i, j), tolerance() * largest) << what << " " << i << ", " << j;
      }
    }
  }
  static Matrix Of(const TensorView& tensor) {
    return [tensor](int64_t i, int64_t j) { return GetElement(tensor, i, j); };
  }

  ThreadPool pool_{3, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
  ExpertAdapters adapters_;
  TrainedExpertAdapters trained_;
  ExpertAdapterProducts products_;

 private:
  void Make(uint32_t seed, int64_t n, int64_t k, std::deque<Tensor>* values, std::vector<const ops::Weight*>* weights,
            std::vector<const ops::Weight*>* transposed, std::vector<TensorView>* gradients) {
    values->push_back(ops::RandomMatrix(dtype(), n, k, 100 + seed));
    weights->push_back(&packed_.emplace_back(ops::Packed(stream_, values->back())));
    auto other = ops::Weight::Allocate({.n = k, .k = n, .dtype = dtype()}, Device::Cpu());
    SY_CHECK_OK(other.status());
    transposed->push_back(&packed_.emplace_back(*std::move(other)));
    SY_CHECK_OK(ops::PackTransposed(stream_, values->back(), &packed_.back()));
    gradients->push_back(gradients_.emplace_back(Tensor::Zeros(AccDType(dtype()), {n, k})));
  }

  std::deque<Tensor> a_rows_, b_rows_, gradients_;
  std::deque<ops::Weight> packed_;
};

INSTANTIATE_TEST_SUITE_P(DTypes, ExpertAdaptersTest, testing::Values(DType::kF32, DType::kF64, DType::kBf16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(ExpertAdaptersTest, AddToEachExpertsRows) {
  const Tensor x = ops::RandomMatrix(dtype(), kTokens, kIn, 1), y = ops::RandomMatrix(dtype(), rows(), kOut, 2);
  std::vector<double> before;
  for (int64_t i = 0; i < rows() * kOut; ++i) before.push_back(GetElement(y, i / kOut, i % kOut));
  ASSERT_TRUE(products_.Add(stream_, adapters_, {Offsets(), Picked()}, x, y).ok());
  ExpectMatrix(
      y,
      [&](int64_t i, int64_t n) {
        const size_t e = ExpertOf(i);
        const std::vector<double> u = U(e, Of(x), Picked()[static_cast<size_t>(i)]);
        double sum = before[static_cast<size_t>(i * kOut + n)];
        for (int64_t j = 0; j < kRank; ++j) sum += B(e, n, j) * u[static_cast<size_t>(j)];
        return sum;
      },
      "y");
}

TEST_P(ExpertAdaptersTest, GiveGradientsOfTheirInput) {
  const Tensor dy = ops::RandomMatrix(dtype(), kTokens, kOut, 3), dx = ops::RandomMatrix(dtype(), rows(), kIn, 4);
  std::vector<double> before;
  for (int64_t i = 0; i < rows() * kIn; ++i) before.push_back(GetElement(dx, i / kIn, i % kIn));
  ASSERT_TRUE(products_.AddInputGradient(stream_, kScale, trained_, {Offsets(), Picked()}, dy, dx).ok());
  ExpectMatrix(
      dx,
      [&](int64_t i, int64_t k) {
        const size_t e = ExpertOf(i);
        const std::vector<double> du = Du(e, Of(dy), Picked()[static_cast<size_t>(i)]);
        double sum = before[static_cast<size_t>(i * kIn + k)];
        for (int64_t j = 0; j < kRank; ++j) sum += A(e, j, k) * du[static_cast<size_t>(j)];
        return sum;
      },
      "dx");
}

TEST_P(ExpertAdaptersTest, GetGradientsOfTheirRowsAlone) {
  const Tensor dy = ops::RandomMatrix(dtype(), rows(), kOut, 5), x = ops::RandomMatrix(dtype(), kTokens, kIn, 6);
  trained_.a_gradients[0] = TensorView();  // frozen
  for (int pass = 1; pass <= 2; ++pass) {
    ASSERT_TRUE(products_.AddGradients(stream_, adapters_, trained_, {Offsets(), Picked()}, dy, x).ok());
  }
  for (size_t e = 0; e < kExperts; ++e) {
    const auto sum = [&](const std::function<double(int64_t row)>& of) {
      double all = 0;
      for (int64_t i = Offsets()[e]; i < Offsets()[e + 1]; ++i) all += 2 * of(i);
      return all;
    };
    const auto picked = [](int64_t i) { return Picked()[static_cast<size_t>(i)]; };
    ExpectMatrix(
        trained_.b_gradients[e],
        [&](int64_t n, int64_t j) {
          return sum([&](int64_t i) { return GetElement(dy, i, n) * U(e, Of(x), picked(i))[static_cast<size_t>(j)]; });
        },
        "dB of " + std::to_string(e));
    if (e == 0) continue;
    ExpectMatrix(
        trained_.a_gradients[e],
        [&](int64_t j, int64_t k) {
          return sum([&](int64_t i) { return Du(e, Of(dy), i)[static_cast<size_t>(j)] * GetElement(x, picked(i), k); });
        },
        "dA of " + std::to_string(e));
  }
}

// Hidden rows with the adapters' part in the sums, whether those are kept or not.
TEST_P(ExpertAdaptersTest, ComeBeforeTheActivation) {
  constexpr int64_t kFfn = kOut / 2;
  const Tensor x = ops::RandomMatrix(dtype(), kTokens, kIn, 7);
  std::deque<Tensor> gate_up;
  std::deque<ops::Weight> packed;
  std::vector<const ops::Weight*> weights;
  for (uint32_t e = 0; e < kExperts; ++e) {
    gate_up.push_back(ops::RandomMatrix(dtype(), kOut, kIn, 20 + e));
    weights.push_back(&packed.emplace_back(ops::Packed(stream_, gate_up.back(), ops::WeightLayout::kGatedPanels)));
  }
  const ExpertAdapters none;
  ops::ExpertFfnDesc desc = {.gate_up = weights, .down = {}, .offsets = Offsets(), .x_rows = Picked()};
  const Tensor hidden(dtype(), {rows(), kFfn}), again(dtype(), {rows(), kFfn}), sums(dtype(), {rows(), kOut});
  ASSERT_TRUE(products_.Hidden(stream_, {&adapters_, &none}, desc, x, hidden).ok());
  desc.sums = sums;
  ASSERT_TRUE(products_.Hidden(stream_, {&adapters_, &none}, desc, x, again).ok());
  for (int64_t i = 0; i < rows(); ++i) {
    const size_t e = ExpertOf(i);
    const int64_t token = Picked()[static_cast<size_t>(i)];
    const std::vector<double> u = U(e, Of(x), token);
    std::vector<double> sum(kOut, 0.0);
    for (int64_t n = 0; n < kOut; ++n) {
      double& value = sum[static_cast<size_t>(n)];
      for (int64_t k = 0; k < kIn; ++k) value += GetElement(gate_up[e], n, k) * GetElement(x, token, k);
      for (int64_t j = 0; j < kRank; ++j) value += B(e, n, j) * u[static_cast<size_t>(j)];
    }
    const std::vector<double> wanted =
        reference::SwiGlu({sum.begin(), sum.begin() + kFfn}, {sum.begin() + kFfn, sum.end()});
    for (int64_t f = 0; f < kFfn; ++f) {
      const double value = wanted[static_cast<size_t>(f)];
      EXPECT_NEAR(GetElement(hidden, i, f), value, 4 * tolerance() * (1 + std::abs(value))) << i << ", " << f;
      EXPECT_EQ(GetElement(again, i, f), GetElement(hidden, i, f));
    }
  }
}

}  // namespace
}  // namespace switchyard::moe
