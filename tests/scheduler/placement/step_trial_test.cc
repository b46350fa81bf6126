#include "scheduler/placement/per_step/step_trial.h"

#include <limits>

#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

// Steps of so many rows; returns how many decided.
int64_t Steps(StepTrial* trial, int steps, int64_t rows, double decided_seconds, double seconds) {
  const int64_t before = trial->steps(true);
  for (int i = 0; i < steps; ++i) {
    const bool decides = trial->Next({.rows = rows});
    trial->Done({.rows = rows}, decides, decides ? decided_seconds : seconds);
  }
  return trial->steps(true) - before;
}

constexpr int kTrial = 2 * StepTrial::kSamples;

TEST(StepTrialTest, BothWaysTakeTurnsAtFirst) {
  StepTrial trial;
  EXPECT_EQ(Steps(&trial, kTrial, 100, 1, 2), StepTrial::kSamples);
}

TEST(StepTrialTest, TheFasterWayStays) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 1, 1.2);
  EXPECT_EQ(Steps(&trial, 400, 100, 1, 1.2), 400 - 400 / 100);  // 20 % slower: one step in 100 costs a five hundredth
  StepTrial other;
  Steps(&other, kTrial, 100, 1.2, 1);
  EXPECT_EQ(Steps(&other, 400, 100, 1.2, 1), 400 / 100);
}

TEST(StepTrialTest, WhatIsFarSlowerIsHardlyTried) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 3, 1);
  EXPECT_EQ(Steps(&trial, 4000, 100, 3, 1), 4);
  Steps(&trial, 2 * StepTrial::kMostApart * kTrial, 100, 1000, 1);
  EXPECT_EQ(Steps(&trial, 2 * StepTrial::kMostApart, 100, 1000, 1), 2);
}

TEST(StepTrialTest, DecidingHasToBeAHundredthFaster) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 0.995, 1);
  EXPECT_EQ(Steps(&trial, 320, 100, 0.995, 1), 320 / StepTrial::kLeastApart);
  StepTrial other;
  Steps(&other, kTrial, 100, 0.98, 1);
  EXPECT_EQ(Steps(&other, 320, 100, 0.98, 1), 320 - 320 / StepTrial::kLeastApart);
}

TEST(StepTrialTest, ItFollowsWhatChanges) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 1, 1.2);
  Steps(&trial, 2000, 100, 1.4, 1.2);  // deciding has become slower
  EXPECT_LT(Steps(&trial, 1000, 100, 1.4, 1.2), 50);
}

TEST(StepTrialTest, SizesAreTriedByThemselves) {
  StepTrial trial;
  for (int i = 0; i < 200; ++i) {
    Steps(&trial, 1, 8, 0.02, 0.01);
    Steps(&trial, 1, 2048, 1, 1.3);
  }
  EXPECT_LT(Steps(&trial, 100, 8, 0.02, 0.01), 5);
  EXPECT_GT(Steps(&trial, 100, 2048, 1, 1.3), 90);
}

TEST(StepTrialTest, SoArePromptsAndDecodes) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 1, 2);
  EXPECT_TRUE(trial.Next({.rows = 100}));
  EXPECT_FALSE(trial.Next({.rows = 100, .prompts = true}));  // its first
}

TEST(StepTrialTest, OneLateStepChangesNothing) {
  StepTrial trial;
  Steps(&trial, kTrial, 100, 1, 1.2);
  trial.Done({.rows = 100}, true, 50);
  EXPECT_GT(Steps(&trial, 200, 100, 1, 1.2), 190);
}

TEST(StepTrialTest, ImpossibleTimesAreIgnored) {
  StepTrial trial;
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (int i = 0; i < 20; ++i) trial.Done({.rows = 100}, true, seconds);
  }
  EXPECT_EQ(Steps(&trial, kTrial, 100, 1, 2), StepTrial::kSamples);
  EXPECT_GT(Steps(&trial, 100, 100, 1, 2), 90);
  EXPECT_GT(Steps(&trial, kTrial, 0, 1, 2), 0);  // a step without rows
}

TEST(StepTrialTest, SaysWhatItGained) {
  StepTrial trial;
  Steps(&trial, kTrial + 1000, 100, 1, 1.25);
  // Some of the first ones came before the other way was known.
  EXPECT_NEAR(trial.gained_seconds(), 0.25 * static_cast<double>(trial.steps(true)), 0.25 * StepTrial::kSamples);
  StepTrial loses;
  Steps(&loses, kTrial + 1000, 100, 1.25, 1);
  EXPECT_LE(loses.gained_seconds(), 0);
}

}  // namespace
}  // namespace switchyard::placement
