// The chance of a need by what the layer needed before, and by what the last gates needed.
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/forecast/need_path.h"
#include "scheduler/offload/forecast/need_rate.h"

namespace switchyard::offload {
namespace {

constexpr OffloadShape kShape{.num_layers = 2, .num_experts = 4, .num_slots = 4};

TEST(NeedRateTest, BeforeAnyPassAnExpertsChanceIsItsShare) {
  const NeedRate rate(kShape, {{8, 4, 0, 4, 1, 1, 1, 1}});
  EXPECT_EQ(rate.Chance(0), kChance / 2);
  EXPECT_EQ(rate.Chance(1), kChance / 4);
  EXPECT_EQ(rate.Chance(2), 0);
  EXPECT_EQ(rate.Chance(7), kChance / 4);
  const NeedRate two({.num_layers = 1, .num_experts = 4, .num_slots = 4, .token_uses = 2}, {{8, 4, 0, 4}});
  EXPECT_EQ(two.Chance(0), kChance);
  EXPECT_EQ(two.Chance(1), kChance / 2);
}

TEST(NeedRateTest, CountsOfTheLargestSizeDoNotOverflow) {
  const NeedRate rate(kShape, {{int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62, 1, 1, 1, 1}});
  EXPECT_EQ(rate.Chance(0), kChance / 4);
}

TEST(NeedRateTest, WhatIsAlwaysNeededAndWhatNeverIsAreDistinguished) {
  NeedRate rate(kShape, std::vector<int64_t>(8, 1));
  for (int pass = 0; pass < 200; ++pass) {
    rate.Observe({.layer = 0, .rows = std::vector<int32_t>{3, 0, pass % 2, 0}});
    rate.Observe({.layer = 1, .rows = std::vector<int32_t>{0, 0, 0, 1}});
  }
  EXPECT_GT(rate.Chance(0), kChance * 95 / 100);
  EXPECT_LT(rate.Chance(1), kChance * 5 / 100);
  EXPECT_NEAR(rate.Chance(2), kChance / 2, kChance / 16);
  EXPECT_GT(rate.Chance(4 + 3), kChance * 95 / 100);
}

// A prompt needs every expert, and says all the same which of them its tokens need most.
TEST(NeedRateTest, APromptSaysWhatItsTokensNeed) {
  const OffloadShape shape = {.num_layers = 2, .num_experts = 4, .num_slots = 4, .token_uses = 1};
  NeedRate rate(shape, std::vector<int64_t>(8, 1));
  const std::vector<int32_t> rows = {60, 29, 10, 1};
  rate.Observe({.layer = 0, .rows = rows});
  EXPECT_GT(rate.Chance(0), kChance * 99 / 100) << "as many tokens are taken to follow";
  EXPECT_GT(rate.Chance(4), kChance * 99 / 100);
  rate.Observe({.layer = 1, .rows = std::vector<int32_t>{0, 0, 0, 1}});
  for (ExpertKey key = 0; key < 4; ++key)
    EXPECT_NEAR(rate.Chance(key), kChance * rows[static_cast<size_t>(key)] / 100, kChance / 32) << key;
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

// How far it reaches is bounded by bytes; what it says of the layers that it reaches is learned all the same.
TEST(NeedPathTest, ReachesAsFarAsItsBytes) {
  constexpr int64_t kDistance = 3 * 4 * 4 * sizeof(int32_t);  // of 3 layers of 4 experts
  struct Case {
    int64_t bytes;
    int sources, ahead;
  };
  for (const Case& c : {Case{kDistance - 1, 0, 0}, Case{kDistance, 1, 1}, Case{2 * kDistance, 1, 2},
                        Case{3 * kDistance, 1, 3}, Case{4 * kDistance, 2, 3}, Case{9 * kDistance, 2, 3}}) {
    const NeedPath path(3, 4, 2, c.bytes);
    EXPECT_EQ(path.num_sources(), c.sources) << c.bytes;
    EXPECT_EQ(path.num_ahead(), c.ahead) << c.bytes;
  }
  EXPECT_EQ(NeedPath(48, 128, 8).num_ahead(), 8);
  EXPECT_EQ(NeedPath(94, 128, 8).num_ahead(), 8);
  EXPECT_EQ(NeedPath(94, 128, 8).num_sources(), 3);
  EXPECT_EQ(NeedPath(58, 256, 8).num_ahead(), 4);
  EXPECT_EQ(NeedPath(58, 256, 8).num_sources(), 1);
  EXPECT_EQ(NeedPath(8, 16, 8).num_ahead(), 8);
}

// One layer ahead and no further: only the next layer gets a correction, and it is the right one.
TEST(NeedPathTest, LearnsWithinItsReach) {
  NeedPath path(3, 4, 2, 3 * 4 * 4 * sizeof(int32_t));
  const std::vector<int32_t> base(4, kChance / 4);
  for (int gate = 0; gate < 6000; ++gate) {
    const int layer = gate % 3, expert = gate / 3 * 7 % 4;
    std::vector<int32_t> rows(4, 0);
    rows[static_cast<size_t>(expert)] = 1;
    path.Observe({.layer = layer, .rows = rows}, base);
    if (gate < 5000 || layer == 2) continue;
    for (int e = 0; e < 4; ++e) {
      const int32_t next = path.Correction((layer + 1) * 4 + e);
      EXPECT_TRUE(e == expert ? next > kChance / 4 : next < 0) << gate << " " << e << " " << next;
      EXPECT_EQ(path.Correction((layer + 2) % 3 * 4 + e), 0);
      EXPECT_EQ(path.Correction(layer * 4 + e), 0);
    }
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
}  // namespace switchyard::offload
