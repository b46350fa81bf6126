// The background balancer when migrations fail, ranks do not answer, or groups are lost.
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/balancer/residency_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(BackgroundBalancerTest, AMigrationThatFailsIsDroppedEverywhere) {
  StartPlan();
  loop->Prepared(0, 1, "", now);
  loop->Prepared(1, 1, "the checksum of expert 0 of MoE layer 0 is wrong", now);
  EXPECT_EQ(log.back(), "drop 1");
  EXPECT_EQ(loop->placement_epoch(), 0);
  EXPECT_EQ(loop->view().epoch, 0);
  EXPECT_EQ(loop->view().copies, 0);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  EXPECT_EQ(loop->view().reason, "after 0 of 2 migrations: rank 1: the checksum of expert 0 of MoE layer 0 is wrong");
  EXPECT_EQ(LayerAt(0), placement::ContiguousPlacement(kExperts, kRanks, 2));
  // The next plan uses new epochs.
  Steps(kPeriod);
  EXPECT_EQ(log.back(), "plan 3");
}

TEST_F(BackgroundBalancerTest, WhatIsCommittedStaysWhenALaterMigrationFails) {
  StartPlan();
  RunMigration();
  loop->Prepared(0, 2, "no memory", now);
  EXPECT_EQ(log.back(), "drop 2");
  EXPECT_EQ(loop->view().reason, "after 1 of 2 migrations: rank 0: no memory");
  EXPECT_EQ(loop->placement_epoch(), 1);
  EXPECT_TRUE(LayerAt(0).Holds(1, 0));
  EXPECT_FALSE(LayerAt(1).Holds(0, 2));
  EXPECT_EQ(loop->view().plan, nullptr) << "it says nothing of what is there now";
  EXPECT_EQ(loop->view().last_copies, 1);
  EXPECT_EQ(loop->view().last_bytes, 1000);
}

TEST_F(BackgroundBalancerTest, CopiesThatDoNotEndInTimeAreDropped) {
  StartPlan();
  loop->Prepared(1, 1, "", now);
  now += BackgroundBalancer::kPatience - absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "prepare 1");
  now += absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "drop 1");
  EXPECT_THAT(loop->view().reason, HasSubstr("not ready in time: rank 0"));
}

TEST_F(BackgroundBalancerTest, ARankThatDoesNotReleaseEndsTheGroup) {
  StartPlan();
  AllPrepared();
  Step();
  loop->Released(0, 1, now);
  now += BackgroundBalancer::kPatience - absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "release 1");
  now += absl::Milliseconds(1);
  loop->Tick(now);
  EXPECT_EQ(log.back(), "break: not all ranks released placement 1 within 1m");
  loop->Tick(now + absl::Hours(1));
  EXPECT_EQ(loop->view().epoch, 1);
  EXPECT_EQ(loop->view().reason,
            "after 1 of 2 migrations: the group was lost: not all ranks released placement 1 within 1m");
}

// A lost group ends the plan in any state, without Drop messages, since the ranks' slots are gone with the group.
TEST_F(BackgroundBalancerTest, AGroupIsLostInEveryState) {
  struct Case {
    const char* name;
    std::function<void()> before;
    int64_t epoch;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"preparing", [] {}, 0, "after 0 of 2 migrations: the group was lost: gone"},
      {"one rank prepared", [&] { loop->Prepared(0, prepared.epoch, "", now); }, 0, "after 0 of 2"},
      {"ready", [&] { AllPrepared(); }, 0, "after 0 of 2"},
      {"committed",
       [&] {
         AllPrepared();
         loop->StepPlanned(++step, now);
       },
       1, "after 1 of 2"},
      {"releasing",
       [&] {
         AllPrepared();
         Step();
       },
       1, "after 1 of 2"},
      {"second preparing", [&] { RunMigration(); }, 1, "after 1 of 2"},
      {"second ready",
       [&] {
         RunMigration();
         AllPrepared();
       },
       1, "after 1 of 2"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    log.clear();
    step = 0;
    Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = kPeriod});
    StartPlan();
    c.before();
    log.clear();
    loop->GroupDown("gone", now);
    EXPECT_THAT(log, IsEmpty());
    EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
    EXPECT_EQ(loop->view().epoch, c.epoch);
    EXPECT_EQ(loop->placement_epoch(), c.epoch);
    EXPECT_THAT(loop->view().reason, HasSubstr(c.reason));
    // Late answers.
    AllPrepared();
    AllReleased();
    EXPECT_EQ(loop->placement_epoch(), c.epoch);
    // The next group makes a new plan after its own steps.
    loop->GroupUp();
    step = 0;
    Steps(kPeriod - 1);
    EXPECT_THAT(log, IsEmpty());
    Step();
    EXPECT_THAT(log, ElementsAre("plan 3"));
    loop->Planned(absl::InvalidArgumentError("enough"), now);
  }
}

// The last migration is in use from its commit on, so the plan counts as carried out.
TEST_F(BackgroundBalancerTest, AGroupLostAfterTheLastCommitHasItsPlan) {
  StartPlan();
  RunMigration();
  AllPrepared();
  loop->StepPlanned(++step, now);
  loop->GroupDown("gone", now);
  EXPECT_EQ(Plans(PlanOutcome::kCommitted), 1);
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 0);
  EXPECT_EQ(loop->view().epoch, 2);
}

TEST_F(BackgroundBalancerTest, AGroupLostWhilePlanningDropsThePlan) {
  Steps(kPeriod);
  loop->GroupDown("gone", now);
  EXPECT_EQ(loop->view().reason, "the group was lost: gone");
  loop->GroupUp();
  step = 0;
  Steps(2 * kPeriod);
  EXPECT_THAT(log, ElementsAre("plan 1")) << "one plan at a time";
  Planned(TwoMigrations());
  EXPECT_THAT(log, ElementsAre("plan 1"));
  EXPECT_EQ(Plans(PlanOutcome::kAborted), 1);
  Step();
  EXPECT_THAT(log, ElementsAre("plan 1", "plan 1")) << "its epochs were not used";
}

TEST_F(BackgroundBalancerTest, LateAnswersOfAnotherEpochChangeNothing) {
  StartPlan();
  loop->Prepared(0, 1, "full", now);
  Steps(kPeriod);
  Planned(TwoMigrations());  // epochs 3 and 4
  ASSERT_EQ(prepared.epoch, 3);
  loop->Prepared(0, 3, "", now);
  for (const int64_t epoch : {1, 2, 4, -3}) {
    loop->Prepared(1, epoch, "", now);
    loop->Prepared(1, epoch, "bad", now);
    loop->Released(0, epoch, now);
    loop->Released(1, epoch, now);
  }
  loop->Released(0, 3, now);  // not asked for yet
  loop->Released(1, 3, now);
  EXPECT_EQ(log.back(), "prepare 3");
  EXPECT_EQ(loop->placement_epoch(), 0);
  loop->Prepared(1, 3, "", now);
  loop->Prepared(1, 3, "", now);  // twice
  EXPECT_EQ(loop->placement_epoch(), 3);
  Step();
  loop->Prepared(0, 3, "too late", now);
  EXPECT_EQ(log.back(), "release 3");
}

}  // namespace
}  // namespace switchyard::server
