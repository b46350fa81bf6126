// Pauses of the server itself: workers are not blamed for messages that it did not read.
#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

// The workers' messages during the server's pause wait in its sockets.
TEST_F(GroupTest, TheServersOwnPauseIsNotItsWorkersSilence) {
  Form(2);
  Execute(1);
  Pass(absl::Seconds(1), {1, 2});
  now += absl::Minutes(3);   // also longer than the step's limit
  group->Heartbeat(1, now);  // one was read in time
  group->Tick(now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  ASSERT_EQ(group->members().size(), 2u);
  EXPECT_FALSE(group->members().at(2).suspect);
  Pass(absl::Milliseconds(50), {1, 2});
  Answer(1, 1);
  Answer(2, 1);
  EXPECT_EQ(log.back(), "step 1 1 2");
  // A worker that stays silent afterwards is fenced, even one whose last message came just before the check.
  Pass(absl::Milliseconds(1500), {1});
  EXPECT_EQ(group->members().count(2), 1u);
  Pass(absl::Milliseconds(50), {1});
  EXPECT_EQ(group->members().count(2), 0u);
  EXPECT_EQ(group->members().count(1), 1u);
}

TEST_F(GroupTest, AMemberThatWasSilentBeforeTheServersPauseIsStillFenced) {
  Form(2);
  Pass(absl::Seconds(1), {1});
  now += absl::Seconds(4);
  group->Tick(now);
  EXPECT_EQ(group->members().size(), 2u);
  Pass(absl::Milliseconds(500), {1});
  EXPECT_EQ(group->members().count(2), 0u);
  EXPECT_EQ(group->members().count(1), 1u);
}

// The server checks in time, but a worker's messages are not read.
TEST_F(GroupTest, NobodyIsFencedForWhatLiesUnread) {
  Form(2);
  unread_of = "b";
  Pass(absl::Seconds(10), {1});
  EXPECT_EQ(group->members().size(), 2u);
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  unread_of = "";  // it was read, and nothing more comes
  Pass(absl::Seconds(3), {1});
  EXPECT_EQ(group->members().count(2), 0u);
  EXPECT_EQ(group->members().count(1), 1u);
}

TEST_F(GroupTest, TheServersOwnPauseIsNoTimeOfForming) {
  Make(2);
  ASSERT_TRUE(Register(1, Info("a")).ok());
  ASSERT_TRUE(Register(2, Info("b")).ok());
  Pass(absl::Seconds(20), {1, 2});
  now += absl::Seconds(20);
  group->Tick(now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
  EXPECT_THAT(workers[1]->aborts, testing::IsEmpty());
  Pass(absl::Seconds(11), {1, 2});
  EXPECT_THAT(workers[1]->aborts, testing::SizeIs(1));
}

}  // namespace
}  // namespace switchyard::server
