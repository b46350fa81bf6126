// What workers report while a group forms: which of it moves the time limit on, and what users see of it.
#include <string>

#include "gmock/gmock.h"
#include "server/fleet/worker_group.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

using fleet::LoadPhase;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class GroupProgressTest : public GroupTest {
 protected:
  void SetUp() override {
    Make(2);
    ASSERT_TRUE(Register(1, Info("a")).ok());
    ASSERT_TRUE(Register(2, Info("b")).ok());
  }
  void Report(WorkerId id, LoadPhase phase, int64_t done, int64_t total) {
    group->LoadProgress(id, {.epoch = group->epoch(), .phase = phase, .done = done, .total = total}, now);
  }
  bool joining() const { return group->state() == WorkerGroup::State::kJoining; }
};

TEST_F(GroupProgressTest, FormingTakesAtMostThirtySecondsWithoutProgress) {
  for (int i = 1; i <= 4; ++i) {  // loading goes on for 80 s
    Pass(absl::Seconds(20), {1, 2});
    Report(1, LoadPhase::kWeights, i, 10);
  }
  EXPECT_EQ(group->epoch(), 1);
  EXPECT_TRUE(joining());
  Pass(absl::Seconds(20), {1, 2});
  Report(1, LoadPhase::kWeights, 4, 10);  // the same figures again: no progress
  Pass(absl::Seconds(10), {1, 2});
  EXPECT_TRUE(joining());
  Pass(absl::Milliseconds(50), {1, 2});
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_THAT(workers[2]->aborts, ElementsAre(Pair(1, HasSubstr("not formed within 30s; loading weights: 40 %"))));
}

TEST_F(GroupProgressTest, EveryPhaseCountsFromZero) {
  const auto report = [&](LoadPhase phase, int64_t done, int64_t total) {
    Pass(absl::Seconds(20), {1, 2});
    Report(1, phase, done, total);
    EXPECT_TRUE(joining());
    EXPECT_EQ(group->last_progress(), now);
  };
  report(LoadPhase::kWeights, 0, 100);
  report(LoadPhase::kWeights, 100, 100);
  report(LoadPhase::kWeights, 0, 80);  // first the expert file, then the dense weights
  report(LoadPhase::kWeights, 60, 80);
  report(LoadPhase::kExperts, 0, 50);
  report(LoadPhase::kExperts, 50, 50);
  for (int64_t done = 0; done <= 17; ++done) report(LoadPhase::kGraphs, done, 17);
  EXPECT_EQ(group->epoch(), 1);
}

// A worker comes to the next epoch when it has loaded for the last one, and need not load again then.
TEST_F(GroupProgressTest, LoadingForAnOldEpochGoesOn) {
  Report(1, LoadPhase::kWeights, 1, 10);
  group->Fault(2, 1, "a test", now);
  EXPECT_EQ(group->NotReadyReason(), "the group forms: 0 of 2 workers ready");
  Pass(absl::Seconds(1), {1, 2});
  ASSERT_EQ(group->epoch(), 2);
  for (int i = 2; i <= 6; ++i) {
    Pass(absl::Seconds(20), {1, 2});
    group->LoadProgress(1, {.epoch = 1, .done = i, .total = 10}, now);
    EXPECT_EQ(group->last_progress(), now);
  }
  EXPECT_TRUE(joining());
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 60 %");
  group->LoadProgress(1, {.epoch = 3, .done = 7, .total = 10}, now);
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 60 %") << "no such epoch";
}

// Else a start that can never succeed would never be given up.
TEST_F(GroupProgressTest, TheSameInEveryEpochIsNoProgressOfTheStart) {
  Report(1, LoadPhase::kExperts, 0, 0);
  Report(1, LoadPhase::kGraphs, 0, 17);
  Report(1, LoadPhase::kGraphs, 5, 17);
  const absl::Time furthest = group->last_progress();
  for (int epoch = 2; epoch <= 4; ++epoch) {
    group->Fault(1, group->epoch(), "a test", now);
    Pass(absl::Seconds(6), {1, 2});
    ASSERT_EQ(group->epoch(), epoch);
    Report(1, LoadPhase::kExperts, 0, 0);
    for (int done = 0; done <= 5; ++done) Report(1, LoadPhase::kGraphs, done, 17);
    EXPECT_EQ(group->last_progress(), furthest);
  }
  Pass(absl::Seconds(20), {1, 2});
  Report(1, LoadPhase::kGraphs, 4, 17);
  Pass(absl::Seconds(20), {1, 2});
  EXPECT_TRUE(joining()) << "other figures move this epoch on";
  Report(1, LoadPhase::kGraphs, 6, 17);
  EXPECT_EQ(group->last_progress(), now);
}

TEST_F(GroupProgressTest, TheReasonIsWhatTheLastWorkerDoes) {
  EXPECT_EQ(group->NotReadyReason(), "the group forms: 0 of 2 workers ready");
  Report(1, LoadPhase::kWeights, 40, 100);
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 40 %");
  Report(2, LoadPhase::kWeights, 10, 100);
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 10 %");
  Report(1, LoadPhase::kExperts, 0, int64_t{1} << 62);
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 10 %");
  Report(2, LoadPhase::kWeights, 100, 100);  // it has loaded, and waits
  EXPECT_EQ(group->NotReadyReason(), "copying experts: 0 %");
  Report(1, LoadPhase::kExperts, int64_t{1} << 61, int64_t{1} << 62);
  EXPECT_EQ(group->NotReadyReason(), "copying experts: 50 %");
  Report(1, LoadPhase::kGraphs, 4, 17);
  EXPECT_EQ(group->NotReadyReason(), "capturing graphs: 4 of 17");
  Report(2, LoadPhase::kGraphs, 3, 17);
  EXPECT_EQ(group->NotReadyReason(), "capturing graphs: 3 of 17");
  group->Ready(2, {.epoch = 1, .num_kv_blocks = 10}, now);
  EXPECT_EQ(group->NotReadyReason(), "capturing graphs: 4 of 17");
  Report(1, LoadPhase::kGraphs, 17, 17);
  EXPECT_EQ(group->NotReadyReason(), "the group forms: 1 of 2 workers ready");
}

}  // namespace
}  // namespace switchyard::server
