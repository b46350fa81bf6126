#include "workers/moe/popularity/text_context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/moe/popularity/gate_forecast.h"
#include "workers/moe/popularity/ridge_probe.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 150, kHidden = 6, kExperts = 5;

// Texts of 1, 70 and 79 rows.
std::vector<uint8_t> Begins() {
  std::vector<uint8_t> begins(kRows);
  begins[0] = begins[1] = begins[71] = 1;
  return begins;
}

Tensor RandomTensor(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor tensor(DType::kF64, {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) tensor.view().data<double>()[i] = normal(random);
  return tensor;
}

// Of column c at row t, by the sum that the recursion stands for: k^n of the text's first row, (1 - k) k^i of the
// others.
double MeanOf(const TensorView& x, const std::vector<uint8_t>& begins, int64_t t, int64_t c) {
  double sum = 0, weight = 1;
  for (; begins[static_cast<size_t>(t)] == 0; --t, weight *= 0.8) sum += 0.2 * weight * x.row<double>(t)[c];
  return sum + weight * x.row<double>(t)[c];
}

TEST(TextContextTest, AMeanOfTheTextSoFarTheNearestWeighingMost) {
  const Tensor x = RandomTensor(kRows, kHidden, 1);
  const std::vector<uint8_t> begins = Begins();
  const Tensor features = WithContext(x, begins, 0, kRows);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t c = 0; c < kHidden; ++c) {
      EXPECT_EQ(features.view().row<double>(t)[c], x.view().row<double>(t)[c]);
      EXPECT_NEAR(features.view().row<double>(t)[kHidden + c], MeanOf(x, begins, t, c), 1e-12) << t << " " << c;
    }
  }
}

TEST(TextContextTest, AWindowKnowsTheRowsBeforeIt) {
  const Tensor x = RandomTensor(kRows, kHidden, 2);
  const Tensor all = WithContext(x, Begins(), 0, kRows);
  for (const int64_t first : {0, 1, 60, 71, 72, 148}) {
    const Tensor window = WithContext(x, Begins(), first, 2);
    for (int64_t i = 0; i < 2 * 2 * kHidden; ++i) {
      EXPECT_NEAR(window.view().data<double>()[i], all.view().row<double>(first)[i], 5e-6) << first << " " << i;
    }
  }
  EXPECT_EQ(WithContext(x, Begins(), 40, 0).view().dim(0), 0);
  EXPECT_EQ(WithContext(x.view().Rows(0, 0), {}, 0, 0).view().dim(0), 0);
}

TEST(TextContextTest, RowsOfTheModelsDTypeAreAddedUpInSinglePrecision) {
  Tensor x(DType::kBf16, {3, 1});
  VisitDType(DType::kBf16, [&]<class Elem>() {
    for (int t = 0; t < 3; ++t) x.view().row<Elem>(t)[0] = static_cast<Elem>(static_cast<Acc<Elem>>(t + 1));
  });
  const Tensor features = WithContext(x, std::vector<uint8_t>{1, 0, 0}, 0, 3);
  ASSERT_EQ(features.view().dtype(), DType::kF32);
  EXPECT_NEAR(features.view().row<float>(2)[1], 0.8 * (0.8 * 1 + 0.2 * 2) + 0.2 * 3, 1e-6);
}

// A map that was fitted on rows in context predicts the logits that hang on them, by one product of rows alone.
TEST(TextContextTest, AFittedMapInContextForecastsWhatHangsOnTheTextBefore) {
  ThreadPool pool(2);
  const Stream stream = Stream::OnCpu(&pool);
  const Tensor x = RandomTensor(kRows, kHidden, 3), map = RandomTensor(kExperts, 2 * kHidden + 1, 4);
  const std::vector<uint8_t> begins = Begins();
  Tensor y(DType::kF64, {kRows, kExperts});
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t e = 0; e < kExperts; ++e) {
      const double* const of = map.view().row<double>(e);
      double sum = of[2 * kHidden];
      for (int64_t c = 0; c < kHidden; ++c)
        sum += of[c] * x.view().row<double>(t)[c] + of[kHidden + c] * MeanOf(x, begins, t, c);
      y.view().row<double>(t)[e] = sum;
    }
  }
  RidgeProbe probe(2 * kHidden, kExperts, 1);
  ASSERT_TRUE(probe.Add(stream, WithContext(x, begins, 0, kRows), {y}).ok());
  const absl::StatusOr<Tensor> fitted = probe.Solve(stream, 0, 1e-9);
  ASSERT_TRUE(fitted.ok());
  const absl::StatusOr<ForecastMap> forecast_map = MakeContextMap(stream, *fitted, DType::kF64);
  ASSERT_TRUE(forecast_map.ok()) << forecast_map.status();

  Tensor chosen(DType::kI32, {kRows, 2}), weight(DType::kF64, {kRows, 2}), predicted(DType::kI32, {kRows, 2});
  ASSERT_TRUE(ops::RouteTopK(stream, {.top_k = 2}, y, chosen, weight).ok());
  GateForecast forecast;
  const std::vector<int32_t> starts(begins.begin(), begins.end());
  ASSERT_TRUE(forecast.PredictInContext(stream, x, *forecast_map, starts, predicted).ok());
  for (int64_t i = 0; i < kRows * 2; ++i)
    EXPECT_EQ(predicted.view().data<int32_t>()[i], chosen.view().data<int32_t>()[i]) << i;

  EXPECT_THAT(std::string(forecast.PredictInContext(stream, x, *forecast_map, {}, predicted).message()),
              HasSubstr("0 texts' begins for 150 rows"));
  EXPECT_THAT(std::string(MakeContextMap(stream, RandomTensor(kExperts, 6, 1), DType::kF64).status().message()),
              HasSubstr("wants fp64 [experts, 2 * hidden + 1]"));
}

// By the formula of hidden_probe.h, written out.
TEST(TextContextTest, ANetworksHiddenUnitsAreAddedToItsLogits) {
  constexpr int64_t kUnits = 7;
  ThreadPool pool(2);
  const Stream stream = Stream::OnCpu(&pool);
  const Tensor x = RandomTensor(kRows, kHidden, 5), linear = RandomTensor(kExperts + kUnits, 2 * kHidden + 1, 6);
  const Tensor out = RandomTensor(kExperts, kUnits, 7);
  const std::vector<uint8_t> begins = Begins();
  const auto product = [&](int64_t t, int64_t row) {
    const double* const of = linear.view().row<double>(row);
    double sum = of[2 * kHidden];
    for (int64_t c = 0; c < kHidden; ++c)
      sum += of[c] * x.view().row<double>(t)[c] + of[kHidden + c] * MeanOf(x, begins, t, c);
    return sum;
  };
  Tensor logits(DType::kF64, {kRows, kExperts});
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t e = 0; e < kExperts; ++e) {
      double sum = product(t, e);
      for (int64_t u = 0; u < kUnits; ++u)
        sum += out.view().row<double>(e)[u] * std::max(0.0, product(t, kExperts + u));
      logits.view().row<double>(t)[e] = sum;
    }
  }
  const absl::StatusOr<ForecastMap> network = MakeNetworkMap(stream, linear, out, DType::kF64);
  ASSERT_TRUE(network.ok()) << network.status();
  Tensor chosen(DType::kI32, {kRows, 2}), weight(DType::kF64, {kRows, 2}), predicted(DType::kI32, {kRows, 2});
  ASSERT_TRUE(ops::RouteTopK(stream, {.top_k = 2}, logits, chosen, weight).ok());
  GateForecast forecast;
  const std::vector<int32_t> starts(begins.begin(), begins.end());
  ASSERT_TRUE(forecast.PredictInContext(stream, x, *network, starts, predicted).ok());
  for (int64_t i = 0; i < kRows * 2; ++i)
    EXPECT_EQ(predicted.view().data<int32_t>()[i], chosen.view().data<int32_t>()[i]) << i;
  EXPECT_THAT(
      std::string(
          MakeNetworkMap(stream, linear, RandomTensor(kExperts, kUnits + 1, 1), DType::kF64).status().message()),
      HasSubstr("wants [experts + units, 2 * hidden + 1] and [experts, units]"));
}

}  // namespace
}  // namespace switchyard::moe
