#include "scheduler/placement/background/residency_epoch.h"

#include <string>

#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

const absl::Time kDeadline = absl::UnixEpoch() + absl::Seconds(10);

ResidencyEpoch Planned(int ranks) { return ResidencyEpoch(7, 6, ranks, kDeadline); }

TEST(ResidencyEpochTest, PreparedCommittedReleased) {
  ResidencyEpoch epoch = Planned(2);
  EXPECT_EQ(epoch.StepPlanned(100, 6), EpochDirective::kNone);
  EXPECT_EQ(epoch.RankReady(0, true), EpochDirective::kNone);
  EXPECT_EQ(epoch.StepPlanned(101, 6), EpochDirective::kNone);
  EXPECT_EQ(epoch.placement_epoch(), 6u);
  EXPECT_EQ(epoch.RankReady(1, true), EpochDirective::kUseFromNextStep);
  EXPECT_EQ(epoch.state(), EpochState::kReady);
  EXPECT_EQ(epoch.placement_epoch(), 7u);
  EXPECT_EQ(epoch.StepDone(100), EpochDirective::kNone);
  EXPECT_EQ(epoch.StepPlanned(102, 7), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kCommitted);
  // Two plans are in flight: 101 still uses what departs.
  EXPECT_EQ(epoch.StepPlanned(103, 7), EpochDirective::kNone);
  EXPECT_EQ(epoch.StepDone(101), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kCommitted);
  EXPECT_EQ(epoch.StepDone(102), EpochDirective::kRelease);
  EXPECT_EQ(epoch.state(), EpochState::kReleasing);
  EXPECT_EQ(epoch.StepDone(103), EpochDirective::kNone) << "once";
  EXPECT_EQ(epoch.RankReleased(1), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kReleasing);
  EXPECT_EQ(epoch.RankReleased(0), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kDone);
  EXPECT_EQ(epoch.placement_epoch(), 7u);
  EXPECT_EQ(epoch.reason(), "");
}

TEST(ResidencyEpochTest, AWrongChecksumAbortsEverywhere) {
  ResidencyEpoch epoch = Planned(3);
  EXPECT_EQ(epoch.RankReady(0, true), EpochDirective::kNone);
  EXPECT_EQ(epoch.RankReady(2, false), EpochDirective::kDropArrivals);
  EXPECT_EQ(epoch.state(), EpochState::kAborted);
  EXPECT_EQ(epoch.reason(), "rank 2: the checksum of what it copied is wrong");
  // Answers that were under way come too late.
  EXPECT_EQ(epoch.RankReady(1, true), EpochDirective::kNone);
  EXPECT_EQ(epoch.RankReady(2, true), EpochDirective::kNone);
  EXPECT_EQ(epoch.RankFailed(1, "lost"), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kAborted);
  EXPECT_EQ(epoch.reason(), "rank 2: the checksum of what it copied is wrong");
  EXPECT_EQ(epoch.StepPlanned(5, 6), EpochDirective::kNone) << "the placement before stays";
  EXPECT_EQ(epoch.StepDone(5), EpochDirective::kNone);
}

TEST(ResidencyEpochTest, ALostRankAbortsUntilTheCommit) {
  ResidencyEpoch preparing = Planned(2);
  EXPECT_EQ(preparing.RankFailed(0, "connection lost"), EpochDirective::kDropArrivals);
  EXPECT_EQ(preparing.reason(), "rank 0: connection lost");
  ResidencyEpoch ready = Planned(1);
  EXPECT_EQ(ready.RankReady(0, true), EpochDirective::kUseFromNextStep);
  EXPECT_EQ(ready.RankFailed(0, "connection lost"), EpochDirective::kDropArrivals);
  EXPECT_EQ(ready.placement_epoch(), 6u);
  ResidencyEpoch committed = Planned(1);
  committed.RankReady(0, true);
  committed.StepPlanned(1, 7);
  EXPECT_EQ(committed.RankFailed(0, "connection lost"), EpochDirective::kNone);
  EXPECT_EQ(committed.placement_epoch(), 7u) << "steps have run by it";
}

TEST(ResidencyEpochTest, TimeRunsOutForWhoIsNotReady) {
  ResidencyEpoch epoch = Planned(3);
  epoch.RankReady(1, true);
  EXPECT_EQ(epoch.Tick(kDeadline - absl::Nanoseconds(1)), EpochDirective::kNone);
  EXPECT_EQ(epoch.Tick(kDeadline), EpochDirective::kDropArrivals);
  EXPECT_EQ(epoch.reason(), "not ready in time: ranks 0, 2");
  ResidencyEpoch ready = Planned(1);
  ready.RankReady(0, true);
  EXPECT_EQ(ready.Tick(kDeadline + absl::Hours(1)), EpochDirective::kNone) << "an idle server plans no step";
  EXPECT_EQ(ready.state(), EpochState::kReady);
}

TEST(ResidencyEpochTest, ARankThatAnswersTwiceCountsOnce) {
  ResidencyEpoch epoch = Planned(2);
  epoch.RankReady(0, true);
  EXPECT_EQ(epoch.RankReady(0, true), EpochDirective::kNone);
  EXPECT_EQ(epoch.state(), EpochState::kPreparing);
  epoch.RankReady(1, true);
  EXPECT_EQ(epoch.RankReleased(0), EpochDirective::kNone) << "nothing is released yet";
  epoch.StepPlanned(1, 7);
  epoch.StepDone(1);
  epoch.RankReleased(0);
  epoch.RankReleased(0);
  EXPECT_EQ(epoch.state(), EpochState::kReleasing);
}

TEST(ResidencyEpochDeathTest, AStepByAnotherPlacementIsOurBug) {
  ResidencyEpoch epoch = Planned(1);
  EXPECT_DEATH(epoch.StepPlanned(1, 7), "7 vs 6");
  epoch.RankReady(0, true);
  EXPECT_DEATH(epoch.StepPlanned(1, 6), "6 vs 7");
}

}  // namespace
}  // namespace switchyard::placement
