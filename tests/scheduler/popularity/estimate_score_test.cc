#include "scheduler/popularity/predictors/estimate_score.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

TEST(EstimateScoreTest, DistanceIsTotalVariationInIntegers) {
  EXPECT_EQ(DistanceOf({1, 3}, {25, 75}), 0);
  EXPECT_EQ(DistanceOf({1, 0}, {0, 8}), kWholeDistance);
  EXPECT_EQ(DistanceOf({2, 2}, {3, 1}), kWholeDistance / 4);
  EXPECT_EQ(DistanceOf({0, 0}, {0, 0}), 0);
  EXPECT_EQ(DistanceOf({0, 0}, {0, 1}), kWholeDistance);
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    Popularity a(256), b(256);
    for (int64_t& entry : a) entry = static_cast<int64_t>(random() >> (22 + random() % 20));
    for (int64_t& entry : b) entry = static_cast<int64_t>(random() >> (22 + random() % 20));
    EXPECT_NEAR(static_cast<double>(DistanceOf(a, b)) / kWholeDistance, TotalVariation(a, b), 2e-6);
  }
}

TEST(EstimateScoreTest, AMeanOfFewWeighsAllAndOfManyTheNewest) {
  RunningMean mean;
  EXPECT_EQ(mean.Mean(), kWholeDistance / 2);
  mean.Add(0);
  EXPECT_EQ(mean.Mean(), 0);
  mean.Add(kWholeDistance);
  EXPECT_NEAR(static_cast<double>(mean.Mean()) / kWholeDistance, 16.0 / 31, 1e-5);
  for (int i = 0; i < 200; ++i) mean.Add(0);
  EXPECT_LT(mean.Mean(), kWholeDistance / 10000);
  for (int i = 0; i < 200; ++i) mean.Add(kWholeDistance);
  EXPECT_LE(mean.Mean(), kWholeDistance);
  EXPECT_GT(mean.Mean(), kWholeDistance - kWholeDistance / 10000);
}

TEST(EstimateScoreTest, TwoFigures) {
  EstimateScore score;
  score.Add({9, 8, 1, 1, 0}, {8, 9, 2, 1, 0}, 1);  // {0, 1} both times, 1 of 20 off twice
  EXPECT_EQ(score.num_batches(), 1);
  EXPECT_DOUBLE_EQ(score.accuracy(), 1);
  EXPECT_NEAR(score.distance(), TotalVariation({9, 8, 1, 1, 0}, {8, 9, 2, 1, 0}), 2e-6);
  score.Add({9, 8, 1, 1, 0}, {9, 0, 0, 0, 9}, 1);
  EXPECT_NEAR(score.accuracy(), 15.0 / 31, 1e-5);
}

}  // namespace
}  // namespace switchyard::popularity
