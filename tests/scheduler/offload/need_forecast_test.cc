#include "scheduler/offload/forecast/need_forecast.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard::offload {
namespace {

constexpr int64_t kRow = int64_t{1} << 20;
constexpr OffloadShape kShape{.num_layers = 3, .num_experts = 4, .num_slots = 6};

void Gate(NeedForecast* forecast, int layer, const std::vector<int32_t>& rows) {
  forecast->Observe({.layer = layer, .rows = rows});
}

TEST(NeedForecastTest, BeforeAnythingIsCountedRowsAreTakenAsIndependent) {
  const NeedForecast forecast(kShape);
  EXPECT_LT(forecast.ChanceOf(0, 1), kChance / 100);
  // 1 - 1/e is 0.63, of half an octave's width 0.57 to 0.70.
  EXPECT_NEAR(forecast.ChanceOf(kRow, 1), kChance * 0.63, kChance * 0.07);
  EXPECT_NEAR(forecast.ChanceOf(kRow / 8, 2), kChance * 0.1175, kChance * 0.03);
  EXPECT_GT(forecast.ChanceOf(100 * kRow, 1), kChance * 0.99);
  int32_t last = 0;
  for (int64_t rows = 1; rows < 64 * kRow; rows += rows / 8 + 1) {
    EXPECT_GE(forecast.ChanceOf(rows, 1), last) << rows;
    last = forecast.ChanceOf(rows, 1);
  }
}

TEST(NeedForecastTest, WhatAnExpectationMeantIsCountedByItsDistance) {
  NeedForecast forecast(kShape);
  // One row is expected of expert 0 of the next layer, which gets it once in four passes; two ahead always.
  for (int pass = 0; pass < 400; ++pass) {
    Gate(&forecast, 0, {1, 0, 0, 0});
    forecast.Expect(0, 1, std::vector<int64_t>{kRow, 0, 0, 0});
    forecast.Expect(0, 2, std::vector<int64_t>{0, kRow, 0, 0});
    ASSERT_EQ(forecast.forecasts().size(), 2u);
    EXPECT_EQ(forecast.forecasts()[0].ahead, 1);
    EXPECT_EQ(forecast.forecasts()[0].chance[0], forecast.ChanceOf(kRow, 1));
    EXPECT_EQ(forecast.forecasts()[1].chance[1], forecast.ChanceOf(kRow, 2));
    // Nothing was expected of expert 2, which other ranks' rows need in every second pass.
    Gate(&forecast, 1, {pass % 4 == 0, 0, pass % 2, 0});
    Gate(&forecast, 2, {0, 5, 0, 0});
  }
  EXPECT_NEAR(forecast.ChanceOf(kRow, 1), kChance / 4, kChance / 25);
  EXPECT_GT(forecast.ChanceOf(kRow, 2), kChance * 95 / 100);
  EXPECT_NEAR(forecast.ChanceOf(0, 1), kChance / 6, kChance / 50);
  EXPECT_LT(forecast.ChanceOf(0, 2), kChance / 100);
}

// What tokens say when a pass begins is not what a gate says as many layers before.
TEST(NeedForecastTest, WhatWasSaidBeforeAPassIsCountedApart) {
  NeedForecast forecast(kShape);
  constexpr int kBegin = NeedForecast::kBeforePass;
  for (int pass = 0; pass < 400; ++pass) {
    forecast.Expect(kBegin, 1, std::vector<int64_t>{kRow, 0, 0, 0});
    forecast.Expect(kBegin, 2, std::vector<int64_t>{0, kRow, 0, 0});
    ASSERT_EQ(forecast.forecasts().size(), 2u);
    EXPECT_EQ(forecast.forecasts()[0].chance[0], forecast.ChanceOf(kRow, 1, kBegin));
    Gate(&forecast, 0, {pass % 4 == 0, 0, 0, 0});
    forecast.Expect(0, 1, std::vector<int64_t>{0, 0, kRow, 0});
    Gate(&forecast, 1, {0, pass % 2, 1, 0});
    Gate(&forecast, 2, {0, 0, 0, 1});
  }
  EXPECT_NEAR(forecast.ChanceOf(kRow, 1, kBegin), kChance / 4, kChance / 25);
  EXPECT_NEAR(forecast.ChanceOf(kRow, 2, kBegin), kChance / 2, kChance / 20);
  EXPECT_GT(forecast.ChanceOf(kRow, 1), kChance * 95 / 100);
  // A pass that begins again, as the one before ended at once: the last word counts.
  forecast.Expect(kBegin, 1, std::vector<int64_t>{0, 0, 0, 0});
  forecast.Expect(kBegin, 1, std::vector<int64_t>{kRow, 0, 0, 0});
  EXPECT_EQ(forecast.forecasts().size(), 1u);
}

TEST(NeedForecastTest, AGateThatSaysNothingLeavesNoForecastOfTheGateBefore) {
  NeedForecast forecast(kShape);
  Gate(&forecast, 0, {1, 0, 0, 0});
  forecast.Expect(0, 1, std::vector<int64_t>{kRow, 0, 0, 0});
  Gate(&forecast, 1, {1, 0, 0, 0});
  EXPECT_TRUE(forecast.forecasts().empty());
  const int32_t chance = forecast.ChanceOf(kRow, 1);
  // Counted once: the layer's next run had no expectation.
  Gate(&forecast, 1, {1, 0, 0, 0});
  EXPECT_EQ(forecast.ChanceOf(kRow, 1), chance);
}

}  // namespace
}  // namespace switchyard::offload
