#include "scheduler/popularity/expert_load_stats.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpertLoadStatsTest, PhasesAreCountedApart) {
  ExpertLoadStats load_stats({.num_layers = 2, .num_experts = 3, .top_k = 2}, 1000);
  ASSERT_TRUE(load_stats.Add(Phase::kPrefill, {4, 2, 0, 1, 1, 4}).ok());
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {0, 1, 1, 1, 0, 1}).ok());
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {0, 1, 1, 0, 1, 1}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kPrefill, 1), ElementsAre(1, 1, 4));
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 1), ElementsAre(1, 1, 2));
  EXPECT_EQ(load_stats.num_tokens(Phase::kPrefill), 3);
  EXPECT_EQ(load_stats.num_tokens(Phase::kDecode), 2);
}

TEST(ExpertLoadStatsTest, OldTrafficFadesAtFixedCounts) {
  ExpertLoadStats load_stats({.num_layers = 1, .num_experts = 2, .top_k = 1}, 8);
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {7, 0}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 0), ElementsAre(7, 0));
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {0, 1}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 0), ElementsAre(3, 0));
  EXPECT_EQ(load_stats.num_tokens(Phase::kDecode), 4);
  // One step of three times as many tokens: halved three times.
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {0, 24}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 0), ElementsAre(0, 3));
}

TEST(ExpertLoadStatsTest, WhatDoesNotFitIsNamedAndAddsNothing) {
  ExpertLoadStats load_stats({.num_layers = 2, .num_experts = 2, .top_k = 1}, 8);
  EXPECT_THAT(load_stats.Add(Phase::kDecode, {1, 2, 3}).message(), HasSubstr("3 counts, expected 2 layers of 2"));
  EXPECT_THAT(load_stats.Add(Phase::kDecode, {1, 2, 3, 1}).message(), HasSubstr("layer 1 has 4 rows, layer 0 has 3"));
  EXPECT_THAT(load_stats.Add(Phase::kDecode, {1, 2, 4, -1}).message(), HasSubstr("layer 1 has -1 rows for expert 1"));
  EXPECT_FALSE(
      load_stats.Add(Phase::kDecode, {0, ExpertLoadStats::kMaxCount + 1, 0, ExpertLoadStats::kMaxCount + 1}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 0), ElementsAre(0, 0));
}

// At once, not halving by halving.
TEST(ExpertLoadStatsTest, AnyCountIsTakenAtOnce) {
  ExpertLoadStats load_stats({.num_layers = 1, .num_experts = 2, .top_k = 1}, 1);
  ASSERT_TRUE(load_stats.Add(Phase::kDecode, {ExpertLoadStats::kMaxCount, 0}).ok());
  EXPECT_THAT(load_stats.Counts(Phase::kDecode, 0), ElementsAre(0, 0));
}

TEST(ExpertLoadStatsTest, BusiestOverMeanOfALayer) {
  EXPECT_DOUBLE_EQ(BusiestOverMean({3, 1, 0, 0}), 3.0);
  EXPECT_DOUBLE_EQ(BusiestOverMean({2, 2}), 1.0);
  EXPECT_DOUBLE_EQ(BusiestOverMean({0, 0}), 0.0);
}

}  // namespace
}  // namespace switchyard::popularity
