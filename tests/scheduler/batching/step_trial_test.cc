#include "scheduler/batching/step_trial.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::batching {
namespace {

// Steps of so many rows, of two ways; returns how many went the second.
int64_t Steps(StepTrial* trial, int steps, int64_t rows, double other_seconds, double seconds) {
  const int64_t before = trial->other_steps();
  for (int i = 0; i < steps; ++i) {
    const int way = trial->Next({.rows = rows});
    trial->Done({.rows = rows}, way, way == 1 ? other_seconds : seconds);
  }
  return trial->other_steps() - before;
}

constexpr int kTrial = 2 * StepTrial::kSamples;

TEST(StepTrialTest, BothWaysTakeTurnsAtFirst) {
  StepTrial trial(2);
  EXPECT_EQ(Steps(&trial, kTrial, 100, 1, 2), StepTrial::kSamples);
}

TEST(StepTrialTest, TheFasterWayStays) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 1, 1.2);
  EXPECT_EQ(Steps(&trial, 400, 100, 1, 1.2), 400 - 400 / 100);  // 20 % slower: one step in 100 costs a five hundredth
  StepTrial other(2);
  Steps(&other, kTrial, 100, 1.2, 1);
  EXPECT_EQ(Steps(&other, 400, 100, 1.2, 1), 400 / 100);
}

TEST(StepTrialTest, WhatIsFarSlowerIsHardlyTried) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 3, 1);
  EXPECT_EQ(Steps(&trial, 4000, 100, 3, 1), 4);
  Steps(&trial, 2 * StepTrial::kMostApart * kTrial, 100, 1000, 1);
  EXPECT_EQ(Steps(&trial, 2 * StepTrial::kMostApart, 100, 1000, 1), 2);
}

TEST(StepTrialTest, DecidingHasToBeAHundredthFaster) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 0.995, 1);
  EXPECT_EQ(Steps(&trial, 320, 100, 0.995, 1), 320 / StepTrial::kLeastApart);
  StepTrial other(2);
  Steps(&other, kTrial, 100, 0.98, 1);
  EXPECT_EQ(Steps(&other, 320, 100, 0.98, 1), 320 - 320 / StepTrial::kLeastApart);
}

TEST(StepTrialTest, ItFollowsWhatChanges) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 1, 1.2);
  Steps(&trial, 2000, 100, 1.4, 1.2);  // deciding has become slower
  EXPECT_LT(Steps(&trial, 1000, 100, 1.4, 1.2), 50);
}

TEST(StepTrialTest, SizesAreTriedByThemselves) {
  StepTrial trial(2);
  for (int i = 0; i < 200; ++i) {
    Steps(&trial, 1, 8, 0.02, 0.01);
    Steps(&trial, 1, 2048, 1, 1.3);
  }
  EXPECT_LT(Steps(&trial, 100, 8, 0.02, 0.01), 5);
  EXPECT_GT(Steps(&trial, 100, 2048, 1, 1.3), 90);
}

TEST(StepTrialTest, SoArePromptsAndDecodesAndUnevenSteps) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 1, 2);
  EXPECT_EQ(trial.Next({.rows = 100}), 1);
  EXPECT_EQ(trial.Next({.rows = 100, .prompts = true}), 0);  // its first
  EXPECT_EQ(trial.Next({.rows = 100, .uneven = true}), 0);
}

// 2000 rows are in the class below 2048's.  Its steps take three times as long a row, which changes no ratio.
TEST(StepTrialTest, AClassBeginsWithWhatItsNeighbourKnows) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 2048, 1, 1.3);
  EXPECT_TRUE(trial.Knows({.rows = 2000}));
  EXPECT_EQ(trial.Best({.rows = 2000}), 1);
  EXPECT_FALSE(trial.Knows({.rows = 1000}));
  EXPECT_FALSE(trial.Knows({.rows = 2000, .prompts = true}));
  EXPECT_EQ(Steps(&trial, 100, 2000, 3, 3.9), 100);
  EXPECT_EQ(Steps(&trial, 200, 2000, 3, 3.9), 198);  // 30 % slower: one try in 150 steps
}

TEST(StepTrialTest, WhatWasBorrowedIsMendedByTries) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 2048, 1, 1.3);
  Steps(&trial, 1000, 2000, 1, 0.5);  // deciding is slower there
  EXPECT_LT(Steps(&trial, 100, 2000, 1, 0.5), 2);
  EXPECT_EQ(trial.Best({.rows = 2048}), 1);
}

TEST(StepTrialTest, WhatWasBorrowedIsLentOnceItWasTried) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 2048, 1, 1.3);
  Steps(&trial, 100, 2000, 1, 1.3);
  EXPECT_TRUE(trial.Knows({.rows = 2000}));
  EXPECT_FALSE(trial.Knows({.rows = 1700}));
  Steps(&trial, 5 * 150, 2000, 1, 1.3);
  EXPECT_TRUE(trial.Knows({.rows = 1700}));
  Steps(&trial, kTrial, 31, 1, 1.3);
  EXPECT_TRUE(trial.Knows({.rows = 32})) << "the next class";
}

// There the other way is a hundred times slower.
TEST(StepTrialTest, ABorrowedRatioIsTriedSoonerThanOneOfItsOwn) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 2048, 100, 1);
  EXPECT_TRUE(trial.Knows({.rows = 2000}));
  EXPECT_EQ(trial.Best({.rows = 2000}), 0);
  Steps(&trial, 2000, 2000, 0.5, 1);
  EXPECT_EQ(trial.Best({.rows = 2000}), 1);
}

TEST(StepTrialTest, NeighboursThatDifferLendNothing) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 7, 1, 0.5);
  Steps(&trial, kTrial, 9, 1, 2);
  EXPECT_FALSE(trial.Knows({.rows = 8}));
  EXPECT_EQ(Steps(&trial, kTrial, 8, 1, 2), StepTrial::kSamples);
  EXPECT_TRUE(trial.Knows({.rows = 6}));
}

TEST(StepTrialTest, OneLateStepChangesNothing) {
  StepTrial trial(2);
  Steps(&trial, kTrial, 100, 1, 1.2);
  trial.Done({.rows = 100}, 1, 50);
  EXPECT_GT(Steps(&trial, 200, 100, 1, 1.2), 190);
}

TEST(StepTrialTest, ImpossibleTimesAreIgnored) {
  StepTrial trial(2);
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (int i = 0; i < 20; ++i) trial.Done({.rows = 100}, 1, seconds);
  }
  EXPECT_EQ(Steps(&trial, kTrial, 100, 1, 2), StepTrial::kSamples);
  EXPECT_GT(Steps(&trial, 100, 100, 1, 2), 90);
  EXPECT_GT(Steps(&trial, kTrial, 0, 1, 2), 0);  // a step without rows
}

// Ways 1 and 3 are left out, though they would be the fastest; also where a class borrows.
TEST(StepTrialTest, WaysThatAreLeftOutAreNeverTried) {
  StepTrial trial(4);
  const double seconds[] = {1, 0.1, 0.8, 0.1};
  std::vector<int64_t> went(4);
  for (int i = 0; i < 2000; ++i) {
    const int64_t rows = i < 500 ? 2048 : 2000;
    const int way = trial.Next({.rows = rows}, 0b100);
    ++went[static_cast<size_t>(way)];
    trial.Done({.rows = rows}, way, seconds[way]);
  }
  EXPECT_EQ(went[1] + went[3], 0);
  EXPECT_GT(went[2], 1900);
  const std::vector<StepTrial::Seen> classes = trial.classes();
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].most + 1, classes[1].least);
  EXPECT_LE(classes[1].least, 2048);
  EXPECT_GE(classes[1].most, 2048);
  EXPECT_EQ(classes[1].best, 2);
  ASSERT_EQ(classes[1].ways.size(), 4u);
  EXPECT_FALSE(classes[1].ways[3].tried);
  EXPECT_EQ(classes[1].ways[3].steps, 0);
  EXPECT_DOUBLE_EQ(classes[1].ways[2].row_seconds, 0.8 / 2048);
  EXPECT_EQ(classes[0].ways[0].steps + classes[0].ways[2].steps, 1500);
  // From now on way 3 may be tried, too.
  for (int i = 0; i < 100; ++i) {
    const int way = trial.Next({.rows = 2048}, 0b1000);
    trial.Done({.rows = 2048}, way, seconds[way]);
  }
  EXPECT_EQ(trial.Best({.rows = 2048}), 3);
  EXPECT_EQ(trial.classes().at(1).ways[1].steps, 0);
}

// With way 0 alone there is nothing to try.
TEST(StepTrialTest, OneWay) {
  StepTrial trial(2);
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(trial.Next({.rows = 7}, 1), 0);
    trial.Done({.rows = 7}, 0, 1);
  }
  EXPECT_EQ(trial.classes().at(0).least, 7);
  EXPECT_EQ(trial.classes().at(0).most, 7);
}

// The fastest of several stays, and all others are tried in turn.
TEST(StepTrialTest, SeveralWays) {
  StepTrial trial(4);
  const double seconds[] = {1, 0.9, 0.8, 1.2};
  std::vector<int> went(4), last(4);
  for (int i = 0; i < 4 * StepTrial::kSamples + 4000; ++i) {
    const int way = trial.Next({.rows = 100, .prompts = true});
    trial.Done({.rows = 100, .prompts = true}, way, seconds[way]);
    ++went[static_cast<size_t>(way)];
  }
  EXPECT_GT(went[2], 3800);
  for (const size_t way : {0u, 1u, 3u}) EXPECT_GT(went[way], StepTrial::kSamples);
  EXPECT_EQ(trial.steps() - trial.other_steps(), went[0]);
  // The times change.
  for (int i = 0; i < 4000; ++i) {
    const int way = trial.Next({.rows = 100, .prompts = true});
    trial.Done({.rows = 100, .prompts = true}, way, way == 3 ? 0.5 : 1);
    ++last[static_cast<size_t>(way)];
  }
  EXPECT_GT(last[3], 2000);
}

TEST(StepTrialTest, SaysWhatItGained) {
  StepTrial trial(2);
  Steps(&trial, kTrial + 1000, 100, 1, 1.25);
  // Some of the first ones came before the other way was known.
  EXPECT_NEAR(trial.gained_seconds(), 0.25 * static_cast<double>(trial.other_steps()), 0.25 * StepTrial::kSamples);
  StepTrial loses(2);
  Steps(&loses, kTrial + 1000, 100, 1.25, 1);
  EXPECT_LE(loses.gained_seconds(), 0);
}

}  // namespace
}  // namespace switchyard::batching
