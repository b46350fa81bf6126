// A forecast's chances, corrected by what the past says of the same needs.
#include "scheduler/offload/forecast/forecast_blend.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard::offload {
namespace {

constexpr OffloadShape kShape{.num_layers = 2, .num_experts = 4, .num_slots = 4};

TEST(ForecastBlendTest, AtFirstTheForecastIsBelieved) {
  ForecastBlend blend(kShape, 2);
  for (const int32_t chance : {0, 7, kChance / 3, kChance}) {
    EXPECT_EQ(blend.Chance(1, 1, chance, kChance / 2), chance);
    EXPECT_EQ(blend.Chance(1, 2, chance, 0), chance);
  }
}

// The forecast says one half of both; the past distinguishes them.
TEST(ForecastBlendTest, LearnsWhatThePastKnowsMore) {
  ForecastBlend blend(kShape, 2);
  for (int pass = 0; pass < 1000; ++pass) {
    for (int e = 0; e < 2; ++e) blend.Chance(4 + e, 1, kChance / 2, e == 0 ? kChance * 9 / 10 : kChance / 10);
    blend.Observe({.layer = 0, .rows = std::vector<int32_t>{0, 9, 9, 9}});
    blend.Observe({.layer = 1, .rows = std::vector<int32_t>{1, 0, 1, 1}});
  }
  EXPECT_GT(blend.Chance(4, 1, kChance / 2, kChance * 9 / 10), kChance * 95 / 100);
  EXPECT_LT(blend.Chance(4, 1, kChance / 2, kChance / 10), kChance * 5 / 100);
  // Of another distance, and of pasts that were not seen, nothing is known.
  EXPECT_EQ(blend.Chance(4, 2, kChance / 2, kChance * 9 / 10), kChance / 2);
  EXPECT_EQ(blend.Chance(4, 1, kChance / 2, kChance / 2), kChance / 2);
}

// What a run did not answer counts once only, and the answer is its layer's.
TEST(ForecastBlendTest, EachSayingIsCountedOnce) {
  ForecastBlend once(kShape, 1), often(kShape, 1);
  for (ForecastBlend* blend : {&once, &often}) blend->Chance(0, 1, kChance / 2, kChance / 2);
  once.Observe({.layer = 0, .rows = std::vector<int32_t>{1, 0, 0, 0}});
  for (int pass = 0; pass < 5; ++pass) often.Observe({.layer = 0, .rows = std::vector<int32_t>{1, 0, 0, 0}});
  const int32_t chance = once.Chance(0, 1, kChance / 2, kChance / 2);
  EXPECT_GT(chance, kChance / 2);
  EXPECT_EQ(often.Chance(0, 1, kChance / 2, kChance / 2), chance);
}

}  // namespace
}  // namespace switchyard::offload
