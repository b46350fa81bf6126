#include "workers/moe/popularity/ridge_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/moe/popularity/gate_forecast.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr int64_t kHidden = 12, kExperts = 5, kRows = 90;

Tensor RandomTensor(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor tensor(DType::kF64, {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) tensor.view().data<double>()[i] = normal(random);
  return tensor;
}

// x · mapᵀ with the bias last in map, plus what does not matter: a number of its own for each row.
Tensor Mapped(const TensorView& x, const TensorView& map) {
  Tensor y(DType::kF64, {x.dim(0), map.dim(0)});
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t e = 0; e < map.dim(0); ++e) {
      double sum = map.row<double>(e)[x.dim(1)] + 0.5 * static_cast<double>(t);
      for (int64_t i = 0; i < x.dim(1); ++i) sum += x.row<double>(t)[i] * map.row<double>(e)[i];
      y.view().row<double>(t)[e] = sum;
    }
  }
  return y;
}

class RidgeProbeTest : public testing::Test {
 protected:
  ThreadPool pool_{2};
  Stream stream_ = Stream::OnCpu(&pool_);
};

TEST_F(RidgeProbeTest, FindsTheMapBehindTheLogits) {
  const Tensor x = RandomTensor(kRows, kHidden, 1), map = RandomTensor(kExperts, kHidden + 1, 2);
  RidgeProbe probe(kHidden, kExperts, 1);
  ASSERT_TRUE(probe.Add(stream_, x, {Mapped(x, map)}).ok());
  const absl::StatusOr<Tensor> solved = probe.Solve(stream_, 0, 1e-9);
  ASSERT_TRUE(solved.ok());
  // Up to what a row's mean takes away: the mean over the experts of each column.
  for (int64_t i = 0; i <= kHidden; ++i) {
    double mean = 0;
    for (int64_t e = 0; e < kExperts; ++e) mean += map.view().row<double>(e)[i] / kExperts;
    for (int64_t e = 0; e < kExperts; ++e) {
      EXPECT_NEAR(solved->view().row<double>(e)[i], map.view().row<double>(e)[i] - mean, 1e-8) << e << " " << i;
    }
  }
}

// (Σ f fᵀ + λ I) W = Σ f yᵀ, with the sums straight from the definition, for each of two targets.
TEST_F(RidgeProbeTest, SolvesTheNormalEquations) {
  const Tensor x = RandomTensor(kRows, kHidden, 3);
  const std::vector<Tensor> logits = [] {
    std::vector<Tensor> two;
    two.push_back(RandomTensor(kRows, kExperts, 4));
    two.push_back(RandomTensor(kRows, kExperts, 5));
    return two;
  }();
  RidgeProbe probe(kHidden, kExperts, 2);
  ASSERT_TRUE(probe.Add(stream_, x, {logits[0], logits[1]}).ok());
  const double lambda = 2.5;
  for (int target = 0; target < 2; ++target) {
    const absl::StatusOr<Tensor> solved = probe.Solve(stream_, target, lambda);
    ASSERT_TRUE(solved.ok());
    for (int64_t i = 0; i <= kHidden; ++i) {
      for (int64_t e = 0; e < kExperts; ++e) {
        const auto feature = [&](int64_t t, int64_t at) { return at < kHidden ? x.view().row<double>(t)[at] : 1.0; };
        double left = lambda * solved->view().row<double>(e)[i], right = 0;
        for (int64_t t = 0; t < kRows; ++t) {
          const double* y = logits[target].view().row<double>(t);
          double mean = 0, predicted = 0;
          for (int64_t other = 0; other < kExperts; ++other) mean += y[other] / kExperts;
          for (int64_t at = 0; at <= kHidden; ++at) predicted += feature(t, at) * solved->view().row<double>(e)[at];
          left += feature(t, i) * predicted;
          right += feature(t, i) * (y[e] - mean);
        }
        EXPECT_NEAR(left, right, 1e-9) << "target " << target << ", feature " << i << ", expert " << e;
      }
    }
  }
}

TEST_F(RidgeProbeTest, BatchesAndThreadsChangeNoBit) {
  const Tensor x = RandomTensor(kRows, kHidden, 6), y = RandomTensor(kRows, kExperts, 7);
  RidgeProbe at_once(kHidden, kExperts, 1), in_parts(kHidden, kExperts, 1);
  ASSERT_TRUE(at_once.Add(stream_, x, {y}).ok());
  ThreadPool one(1);
  const Stream alone = Stream::OnCpu(&one);
  for (int64_t begin = 0; begin < kRows; begin += 37) {
    const int64_t count = std::min<int64_t>(37, kRows - begin);
    ASSERT_TRUE(in_parts.Add(alone, x.view().Rows(begin, count), {y.view().Rows(begin, count)}).ok());
  }
  const absl::StatusOr<Tensor> a = at_once.Solve(stream_, 0), b = in_parts.Solve(alone, 0);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(std::memcmp(a->view().raw(), b->view().raw(), kExperts * (kHidden + 1) * sizeof(double)), 0);
}

TEST_F(RidgeProbeTest, BadRowsAreRefusedAndAddNothing) {
  RidgeProbe probe(kHidden, kExperts, 1);
  Tensor x = RandomTensor(4, kHidden, 1);
  const Tensor y = RandomTensor(4, kExperts, 2);
  EXPECT_THAT(probe.Add(stream_, x, {}).message(), HasSubstr("logits of 0 layers for 1 targets"));
  EXPECT_THAT(probe.Add(stream_, x, {y.view().Rows(0, 3)}).message(), HasSubstr("wants floating [4, 5]"));
  EXPECT_THAT(probe.Add(stream_, x.view().Columns(0, 3), {y}).message(), HasSubstr("wants floating [4, 12]"));
  x.view().data<double>()[7] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(probe.Add(stream_, x, {y}).message(), HasSubstr("x has a number that is not finite"));
  EXPECT_EQ(probe.num_rows(), 0);
  const absl::StatusOr<Tensor> solved = probe.Solve(stream_, 0);
  EXPECT_EQ(solved.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(solved.status().message(), HasSubstr("0 rows seen, wants at least 13"));
}

// A fitted map predicts the gate whose logits it was fitted to, row by row as alone, and none for padding.
TEST_F(RidgeProbeTest, ForecastsTheGate) {
  const Tensor x = RandomTensor(kRows, kHidden, 10), map = RandomTensor(kExperts, kHidden + 1, 11);
  const Tensor y = Mapped(x, map);
  RidgeProbe probe(kHidden, kExperts, 1);
  ASSERT_TRUE(probe.Add(stream_, x, {y}).ok());
  const absl::StatusOr<Tensor> solved = probe.Solve(stream_, 0, 1e-9);
  ASSERT_TRUE(solved.ok());
  const absl::StatusOr<ForecastMap> forecast_map = MakeForecastMap(stream_, *solved, DType::kF64);
  ASSERT_TRUE(forecast_map.ok());

  Tensor chosen(DType::kI32, {kRows, 2}), weight(DType::kF64, {kRows, 2}), predicted(DType::kI32, {kRows, 2});
  ASSERT_TRUE(ops::RouteTopK(stream_, {.top_k = 2}, y, chosen, weight).ok());
  GateForecast forecast;
  ASSERT_TRUE(forecast.Predict(stream_, x, forecast_map->weight, forecast_map->bias, predicted).ok());
  for (int64_t i = 0; i < kRows * 2; ++i) {
    EXPECT_EQ(predicted.view().data<int32_t>()[i], chosen.view().data<int32_t>()[i]) << i;
  }
  Tensor alone(DType::kI32, {1, 2});
  ASSERT_TRUE(forecast.Predict(stream_, x.view().Rows(41, 1), forecast_map->weight, forecast_map->bias, alone).ok());
  EXPECT_EQ(alone.view().data<int32_t>()[0], predicted.view().row<int32_t>(41)[0]);
  EXPECT_THAT(forecast.Predict(stream_, x, forecast_map->weight, forecast_map->bias, alone).message(),
              HasSubstr("for 90 rows"));
}

}  // namespace
}  // namespace switchyard::moe
