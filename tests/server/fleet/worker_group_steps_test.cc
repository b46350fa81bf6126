// Steps of a ready group: in flight, answered, missing, contradictory; and the pauses between tries.
#include <string>

#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(GroupTest, StepsInFlightAreDoneInOrder) {
  Form(2);
  log.clear();
  Execute(1);
  Execute(2);
  Execute(3);
  EXPECT_THAT(workers[2]->plans, ElementsAre(std::pair(1, 1), std::pair(2, 1), std::pair(3, 1)));
  Answer(2, 1);
  Answer(2, 2);
  Answer(1, 2);  // step 2 is whole before step 1
  EXPECT_THAT(log, ElementsAre());
  Answer(1, 1);
  EXPECT_THAT(log, ElementsAre("step 1 1 2", "step 2 1 2"));
  Answer(1, 3);
  Answer(2, 3);
  EXPECT_EQ(log.back(), "step 3 1 2");
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
}

TEST_F(GroupTest, MasksGoToTheRanksThatTheyAreFor) {
  Form(2);
  Execute(1);
  batching::StepMasks masks{.step = 1, .group_epoch = group->epoch(), .ranks = {}};
  masks.ranks.resize(2);
  masks.ranks[1].items.resize(1);
  group->SendMasks(masks);
  EXPECT_THAT(workers[1]->masks, ElementsAre());
  EXPECT_THAT(workers[2]->masks, ElementsAre(std::pair(1, 1)));
}

TEST_F(GroupTest, AnAnswerToNoStepIsDropped) {
  Form(1);
  Answer(1, 5);
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Execute(1);
  Answer(1, 1);
  Answer(1, 1);  // a second answer of a step that is done
  EXPECT_EQ(log.back(), "step 1 1");
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
}

TEST_F(GroupTest, ADoubleAnswerEndsTheGroup) {
  Form(2);
  Execute(1);
  Answer(1, 1);
  Answer(1, 1);
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_EQ(log.back(), "down: rank 0 answered step 1 twice");
}

TEST_F(GroupTest, DifferentCollectivesEndTheGroup) {
  Form(2);
  Execute(1);
  Execute(2);
  Answer(1, 1, 7);
  Answer(2, 2, 7);
  Answer(1, 2, 7);
  Answer(2, 1, 8);
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_EQ(log.back(), "down: the ranks launched different collectives in step 1");
  EXPECT_EQ(workers[1]->aborts.size(), 1u);
}

TEST_F(GroupTest, ALateStepNamesWhoIsMissing) {
  Form(3);
  Execute(1);
  Answer(2, 1);
  Pass(absl::Seconds(121), {1, 2, 3});  // a second later than the workers' own limit, since they can name the rank
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Pass(absl::Milliseconds(50), {1, 2, 3});
  EXPECT_EQ(log.back(), "down: step 1 not done within 2m, missing rank 0, 2");
  EXPECT_EQ(group->members().size(), 3u) << "they answer: nobody is thrown out";
}

TEST_F(GroupTest, AStepsLimitGrowsWithItsRows) {
  Form(2);
  Execute(1, 0);
  Execute(2, 300);
  EXPECT_THAT(workers[2]->limits, ElementsAre(absl::Seconds(120), absl::Seconds(120 + 2 * 300)));
  Answer(1, 1);
  Answer(2, 1);
  Pass(absl::Seconds(720), {1, 2});
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Pass(absl::Milliseconds(1050), {1, 2});
  EXPECT_EQ(log.back(), "down: step 2 not done within 12m, missing rank 0, 1");
}

TEST_F(GroupTest, AStepsTimeBeginsWhenTheOneBeforeItIsDone) {
  Form(1);
  Execute(1);
  Execute(2);
  Pass(absl::Seconds(100), {1});
  Answer(1, 1);
  Pass(absl::Seconds(120), {1});
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Pass(absl::Seconds(2), {1});
  EXPECT_EQ(log.back(), "down: step 2 not done within 2m, missing rank 0");
}

TEST_F(GroupTest, WhatStepsTookBoundsWhatARowMayTake) {
  Form(1);
  Execute(1, 1000);  // nothing is measured: a second for each row
  now += absl::Seconds(10);
  Answer(1, 1);  // 10 ms for each
  Execute(2, 1000);
  now += absl::Seconds(1);
  Answer(1, 2);  // a faster step does not lower the limit
  Execute(3, 2000);
  EXPECT_THAT(workers[1]->limits,
              ElementsAre(absl::Seconds(120 + 1000), absl::Seconds(120 + 160), absl::Seconds(120 + 320)));
}

TEST_F(GroupTest, ALossForgetsTheStepsInFlight) {
  Form(2);
  Execute(1);
  Answer(1, 1);
  group->Lost(2, "killed", now);
  ASSERT_TRUE(Register(3, Info("c", 1)).ok());
  MakeReady();
  Execute(1);  // of epoch 2
  Answer(1, 1);
  Answer(3, 1);
  EXPECT_EQ(log.back(), "step 1 1 3");
}

TEST_F(GroupTest, RepeatedFaultsAreAnsweredMoreAndMoreSlowly) {
  Form(1);
  absl::Duration last = absl::ZeroDuration();
  for (int round = 0; round < 9; ++round) {
    const absl::Time fault = now;
    group->Fault(1, group->epoch(), "cannot run", now);
    ASSERT_EQ(group->state(), WorkerGroup::State::kWaiting);
    while (group->state() == WorkerGroup::State::kWaiting) Pass(absl::Milliseconds(50), {1});
    const absl::Duration pause = now - fault;
    EXPECT_GE(pause, last);
    EXPECT_LE(pause, absl::Milliseconds(5050));
    last = pause;
    MakeReady();  // it forms each time
  }
  EXPECT_GE(last, absl::Seconds(5));
  Execute(1);
  Answer(1, 1);  // a finished step resets the pauses
  const absl::Time fault = now;
  group->Fault(1, group->epoch(), "again", now);
  while (group->state() == WorkerGroup::State::kWaiting) Pass(absl::Milliseconds(50), {1});
  EXPECT_LE(now - fault, absl::Milliseconds(150));
}

TEST_F(GroupTest, AFaultNamesTheRank) {
  Form(2);
  group->Fault(2, 1, "all-to-all 12: peer 0 is gone", now);
  EXPECT_EQ(log.back(), "down: rank 1: all-to-all 12: peer 0 is gone");
  EXPECT_EQ(workers[1]->aborts.size(), 1u);
  group->Fault(1, 1, "aborted", now);  // the other rank's fault changes nothing
  EXPECT_EQ(log.back(), "down: rank 1: all-to-all 12: peer 0 is gone");
}

TEST_F(GroupTest, AFaultsTextIsCutWhereACharacterBegins) {
  Form(1);
  std::string text(1023, 'x');
  for (int i = 0; i < 1000; ++i) text += "\u00e9";  // of two bytes
  group->Fault(1, 1, text, now);
  EXPECT_EQ(log.back(), "down: rank 0: " + std::string(1023, 'x'));
}

}  // namespace
}  // namespace switchyard::server
