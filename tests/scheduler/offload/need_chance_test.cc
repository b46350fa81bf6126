// What a layer needed before, and what the last gates needed, as the chance of its next need.
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/need_history.h"
#include "scheduler/offload/need_path.h"

namespace switchyard {
namespace {

constexpr OffloadShape kShape{.num_layers = 2, .num_experts = 4, .num_slots = 4};

TEST(NeedHistoryTest, BeforeAnyPassAnExpertsChanceIsItsShareOfTheMostPopular) {
  const std::vector<int64_t> popularity = {8, 4, 0, 2, 1, 1, 1, 1};
  const NeedHistory history(kShape, popularity);
  EXPECT_EQ(history.NextChance(0), kChance / 2);
  EXPECT_EQ(history.NextChance(1), kChance / 4);
  EXPECT_EQ(history.NextChance(2), 0);
  EXPECT_EQ(history.LongChance(7), kChance / 2);
}

TEST(NeedHistoryTest, CountsOfTheLargestSizeDoNotOverflow) {
  const std::vector<int64_t> popularity = {int64_t{1} << 62, int64_t{1} << 61, 0, 0, 1, 1, 1, 1};
  const NeedHistory history(kShape, popularity);
  EXPECT_EQ(history.NextChance(0), kChance / 2);
  EXPECT_EQ(history.NextChance(1), kChance / 4);
}

TEST(NeedHistoryTest, WhatIsAlwaysNeededAndWhatNeverIsAreToldApart) {
  NeedHistory history(kShape, std::vector<int64_t>(8, 1));
  for (int pass = 0; pass < 200; ++pass) {
    history.Observe({.layer = 0, .rows = std::vector<int32_t>{3, 0, pass % 2, 0}});
    history.Observe({.layer = 1, .rows = std::vector<int32_t>{0, 0, 0, 1}});
  }
  EXPECT_GT(history.NextChance(0), kChance * 95 / 100);
  EXPECT_LT(history.NextChance(1), kChance * 5 / 100);
  // Needed in every second pass, the last one among them: not now.
  EXPECT_LT(history.NextChance(2), kChance / 4);
  EXPECT_NEAR(history.LongChance(2), kChance / 2, kChance / 16);
  EXPECT_GT(history.NextChance(4 + 3), kChance * 95 / 100);
  history.Observe({.layer = 0, .rows = std::vector<int32_t>{3, 0, 0, 0}});
  EXPECT_GT(history.NextChance(2), kChance * 3 / 4);
}

// Layer 1 needs what layer 0 needed a gate before it, and layer 0 what came two gates before.
TEST(NeedPathTest, LearnsWhatFollowsWhat) {
  NeedPath path(2, 4, 2);
  const std::vector<int32_t> base(4, kChance / 4);
  const auto gate = [&](int layer, int expert) {
    std::vector<int32_t> rows(4);
    rows[static_cast<size_t>(expert)] = 1;
    path.Observe({.layer = layer, .rows = rows}, base);
  };
  for (int pass = 0; pass < 4000; ++pass) {
    const int expert = pass * 7 % 4;
    gate(0, expert);
    if (pass > 3500) {
      for (int e = 0; e < 4; ++e) {
        const int32_t correction = path.Correction(4 + e);
        EXPECT_TRUE(e == expert ? correction > kChance / 4 : correction < 0) << pass << " " << e << " " << correction;
      }
    }
    gate(1, expert);
  }
}

TEST(NeedPathTest, GatesThatNeedMoreThanHalfSayNothing) {
  NeedPath path(2, 4, 2);
  const std::vector<int32_t> base(4, kChance / 4);
  for (int pass = 0; pass < 300; ++pass) {
    path.Observe({.layer = 0, .rows = std::vector<int32_t>{1, 1, 1, 0}}, base);
    for (int e = 0; e < 4; ++e) EXPECT_EQ(path.Correction(4 + e), 0);
    path.Observe({.layer = 1, .rows = std::vector<int32_t>{1, 1, 1, 0}}, base);
  }
}

TEST(NeedPathTest, WithoutSourcesItSaysNothing) {
  NeedPath path(2, 4, 0);
  const std::vector<int32_t> base(4, 0);
  for (int pass = 0; pass < 20; ++pass) {
    path.Observe({.layer = pass % 2, .rows = std::vector<int32_t>{1, 0, 0, 0}}, base);
    for (ExpertKey key = 0; key < 8; ++key) EXPECT_EQ(path.Correction(key), 0);
  }
}

}  // namespace
}  // namespace switchyard
