#include "workers/moe/popularity/hidden_probe.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "workers/moe/popularity/ridge_probe.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kFeatures = 6, kExperts = 3, kRows = 1600;

Tensor RandomTensor(int64_t rows, int64_t columns, uint32_t seed, DType dtype = DType::kF64) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor tensor(dtype, {rows, columns});
  VisitDType(dtype, [&]<class Elem>() {
    for (int64_t i = 0; i < rows * columns; ++i)
      tensor.view().data<Elem>()[i] = static_cast<Elem>(static_cast<Acc<Elem>>(normal(random)));
  });
  return tensor;
}

// Columns of very different sizes, none about 0, one of them constant but for rounding.
Tensor Features(uint32_t seed) {
  Tensor x = RandomTensor(kRows, kFeatures, seed);
  for (int64_t t = 0; t < kRows; ++t) {
    double* const row = x.view().row<double>(t);
    for (int64_t d = 0; d < kFeatures; ++d) row[d] = std::pow(10, static_cast<double>(d) - 3) * (row[d] + 1);
    row[2] = 0.1 * (1 + 1e-6 * row[2]);
  }
  return x;
}

// What no linear map says: |f0 + f1 - 2| for one expert, its negative for another, in units of their deviations.
Tensor Bent(const TensorView& x) {
  Tensor y(DType::kF64, {x.dim(0), kExperts});
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const double bend = std::abs(x.row<double>(t)[0] / 1e-3 + x.row<double>(t)[1] / 1e-2 - 2);
    double* const row = y.view().row<double>(t);
    row[0] = 7 + bend + x.row<double>(t)[4];  // 7: a row's mean does not matter
    row[1] = 7 - bend;
    row[2] = 7 - x.row<double>(t)[4];
  }
  return y;
}

// By the header's formula, in double precision.
double LogitOf(const HiddenLayer& layer, const double* f, int64_t e) {
  const auto product = [&](int64_t row) {
    const double* const of = layer.linear.view().row<double>(row);
    double sum = of[kFeatures];
    for (int64_t d = 0; d < kFeatures; ++d) sum += of[d] * f[d];
    return sum;
  };
  double sum = product(e);
  for (int64_t u = 0; u < layer.num_units; ++u)
    sum += layer.out.view().row<double>(e)[u] * std::max(0.0, product(kExperts + u));
  return sum;
}

double MeanSquaredError(const HiddenLayer& layer, const TensorView& x, const TensorView& y) {
  double error = 0;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const double* const row = y.row<double>(t);
    const double mean = (row[0] + row[1] + row[2]) / kExperts;
    for (int64_t e = 0; e < kExperts; ++e) error += std::pow(LogitOf(layer, x.row<double>(t), e) - row[e] + mean, 2);
  }
  return error / static_cast<double>(x.dim(0) * kExperts);
}

class HiddenProbeTest : public testing::Test {
 protected:
  Tensor MapOf(const TensorView& x, const TensorView& y) {
    RidgeProbe ridge(kFeatures, kExperts, 1);
    EXPECT_TRUE(ridge.Add(stream_, x, {y}).ok());
    absl::StatusOr<Tensor> map = ridge.Solve(stream_, 0, 1e-6);
    EXPECT_TRUE(map.ok()) << map.status();
    return *std::move(map);
  }
  // A layer of no units: the map alone.
  static HiddenLayer Linear(const TensorView& map) {
    HiddenLayer layer{.num_units = 0, .linear = Tensor(DType::kF64, {kExperts, kFeatures + 1}), .out = Tensor()};
    std::copy_n(map.data<double>(), map.NumElements(), layer.linear.view().data<double>());
    return layer;
  }

  ThreadPool pool_{3};
  const Stream stream_ = Stream::OnCpu(&pool_);
  const HiddenFitOptions options_{.num_units = 8, .num_epochs = 30, .batch_rows = 100, .rate = 2e-2};
};

TEST_F(HiddenProbeTest, PredictsInRowsThatItHasNotSeenWhatALinearMapCannot) {
  const Tensor x = Features(1), y = Bent(x);
  const Tensor map = MapOf(x, y);
  HiddenProbe probe(kFeatures, kExperts, kRows);
  probe.Add(x.view().Rows(0, 7), y.view().Rows(0, 7));
  probe.Add(x.view().Rows(7, kRows - 7), y.view().Rows(7, kRows - 7));
  EXPECT_EQ(probe.num_rows(), kRows);
  EXPECT_EQ(probe.num_kept(), kRows);
  const std::optional<HiddenLayer> layer = probe.Fit(stream_, map, options_);
  ASSERT_TRUE(layer.has_value());
  const Tensor other = Features(2), wanted = Bent(other);
  const double linear = MeanSquaredError(Linear(map), other, wanted);
  EXPECT_GT(linear, 0.3);
  EXPECT_LT(MeanSquaredError(*layer, other, wanted), 0.05 * linear);
  // Nothing hangs on the constant column.
  for (int64_t u = 0; u < layer->num_units; ++u) EXPECT_EQ(layer->linear.view().row<double>(kExperts + u)[2], 0) << u;
}

TEST_F(HiddenProbeTest, TheSameBitsOnAnyNumberOfThreads) {
  const Tensor x = Features(3), y = Bent(x);
  const Tensor map = MapOf(x, y);
  HiddenProbe probe(kFeatures, kExperts, kRows);
  probe.Add(x, y);
  ThreadPool alone(1);
  HiddenFitOptions options = options_;
  options.num_epochs = 2;
  const std::optional<HiddenLayer> one = probe.Fit(Stream::OnCpu(&alone), map, options);
  const std::optional<HiddenLayer> many = probe.Fit(stream_, map, options);
  ASSERT_TRUE(one.has_value() && many.has_value());
  for (int64_t i = 0; i < one->linear.view().NumElements(); ++i)
    EXPECT_EQ(one->linear.view().data<double>()[i], many->linear.view().data<double>()[i]) << i;
  for (int64_t i = 0; i < one->out.view().NumElements(); ++i)
    EXPECT_EQ(one->out.view().data<double>()[i], many->out.view().data<double>()[i]) << i;
}

// The first step of one batch goes by the rate in each parameter, against the gradient's sign, which differences of the
// squared error show: of W and b, as long as O is 0.
TEST_F(HiddenProbeTest, AStepGoesAgainstTheErrorsGradient) {
  const Tensor x = RandomTensor(kRows, kFeatures, 4), y = RandomTensor(kRows, kExperts, 5);
  const Tensor map = RandomTensor(kExperts, kFeatures + 1, 6);
  HiddenProbe probe(kFeatures, kExperts, kRows);
  probe.Add(x, y);
  const std::optional<HiddenLayer> layer =
      probe.Fit(stream_, map, {.num_units = 4, .num_epochs = 1, .batch_rows = kRows, .rate = 1e-3});
  ASSERT_TRUE(layer.has_value());
  const HiddenLayer before = Linear(map);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t d = 0; d <= kFeatures; ++d) {
      HiddenLayer moved = Linear(map);
      const double step = layer->linear.view().row<double>(e)[d] - before.linear.view().row<double>(e)[d];
      moved.linear.view().row<double>(e)[d] += step;
      EXPECT_LT(MeanSquaredError(moved, x, y), MeanSquaredError(before, x, y)) << e << " " << d;
      if (d < kFeatures) {
        EXPECT_NEAR(std::abs(step), 1e-3, 1e-4) << e << " " << d;
      }
    }
  }
}

// Logits that are the map's and noise: nothing is there to be learned.
TEST_F(HiddenProbeTest, NoLayerWhereItPredictsNothing) {
  const Tensor x = Features(7), noise = RandomTensor(kRows, kExperts, 8);
  const Tensor map = MapOf(x, noise);
  HiddenProbe probe(kFeatures, kExperts, kRows);
  probe.Add(x, noise);
  EXPECT_FALSE(probe.Fit(stream_, map, options_).has_value());
}

// Half of the rows says one thing, half another; a part of each is kept.
TEST_F(HiddenProbeTest, MoreRowsThanItKeepsAreSampled) {
  constexpr int64_t kKept = 400;
  Tensor x = RandomTensor(kRows, 1, 9, DType::kF32);
  for (int64_t t = 0; t < kRows; ++t) x.view().row<float>(t)[0] = t < kRows / 2 ? -1.0f : 1.0f;
  Tensor y(DType::kF32, {kRows, 2});
  HiddenProbe probe(1, 2, kKept);
  for (int64_t t = 0; t < kRows; ++t) {
    y.view().row<float>(t)[0] = t < kRows / 2 ? 2.0f : 0.0f;
    y.view().row<float>(t)[1] = 0;
  }
  probe.Add(x, y);
  EXPECT_EQ(probe.num_rows(), kRows);
  EXPECT_EQ(probe.num_kept(), kKept);
  EXPECT_EQ(HiddenProbe::BytesOfRow(kFeatures, kExperts), 4 * 9);
  const Tensor map(DType::kF64, {2, 2});
  std::fill_n(map.view().data<double>(), 4, 0.0);
  const std::optional<HiddenLayer> layer = probe.Fit(stream_, map, options_);
  ASSERT_TRUE(layer.has_value());
  const auto logit = [&](double feature) {
    const TensorView linear = layer->linear;
    double sum = linear.row<double>(0)[0] * feature + linear.row<double>(0)[1];
    for (int64_t u = 0; u < layer->num_units; ++u) {
      const double* const unit = linear.row<double>(2 + u);
      sum += layer->out.view().row<double>(0)[u] * std::max(0.0, unit[0] * feature + unit[1]);
    }
    return sum;
  };
  EXPECT_NEAR(logit(-1), 1, 0.05);
  EXPECT_NEAR(logit(1), 0, 0.05);
}

}  // namespace
}  // namespace switchyard::moe
