// Jobs that are blocked until there is room on the disk, or until a user has repaired something.
#include "proto/support/errors.h"
#include "server/jobs/job_manager.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(ManagerTest, AFullDiskIsWaitedForAWhileAndThenForAUser) {
  options_.full_disk = absl::Minutes(5);
  Restart();
  const std::string id = Running();
  for (int i = 1; i <= 5; ++i) {
    AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
    ASSERT_EQ(StateOf(id), jobs::JobState::kPending) << i;
    Pass(options_.longest_pause - absl::Milliseconds(1));
    ASSERT_EQ(StateOf(id), jobs::JobState::kPending) << i;
    Pass(absl::Milliseconds(1));
    AllStart();
    Step(5);
  }
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  EXPECT_EQ(Get(id)->error.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(switchyard::rpc::ReasonOf(Get(id)->error), v1::DISK_FULL);
  EXPECT_THAT(std::string(Get(id)->error.message()), HasSubstr("the disk is full"));
  EXPECT_EQ(journal_.kept.begin()->second.state, jobs::JobState::kPaused);
  Pass(absl::Hours(10));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  ASSERT_TRUE(manager_->Resume(id).ok());
  EXPECT_TRUE(Get(id)->error.ok());
  Pass(absl::ZeroDuration());
  AllStart(4);
  AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending) << "a while again";
}

// A restarted server continues the count of the hour.
TEST_F(ManagerTest, TheWaitForRoomGoesOnInTheNextServer) {
  options_.full_disk = absl::Minutes(5);
  Restart();
  const std::string id = Running();
  AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  const int64_t since = journal_.kept.begin()->second.full_since_unix_ms;
  EXPECT_EQ(since, host_.UnixMs());
  for (int i = 1; i <= 5; ++i) {
    host_.now += absl::Minutes(1);
    Restart();
    Connect(1);
    Connect(2);
    Pass(absl::ZeroDuration());
    AllStart();
    AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
    EXPECT_EQ(StateOf(id), i < 5 ? jobs::JobState::kPending : jobs::JobState::kPaused) << i;
    EXPECT_EQ(journal_.kept.begin()->second.full_since_unix_ms, i < 5 ? since : 0);
  }
  ASSERT_TRUE(manager_->Resume(id).ok());
  // A clock that was set back starts the hour again.
  Pass(absl::ZeroDuration());
  AllStart();
  AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
  host_.now -= absl::Hours(1);
  Restart();
  Connect(1);
  Connect(2);
  Pass(absl::ZeroDuration());
  AllStart();
  AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_EQ(journal_.kept.begin()->second.full_since_unix_ms, host_.UnixMs());
}

// A checkpoint in between ends the hour: a later full disk starts another.
TEST_F(ManagerTest, ACheckpointEndsTheWaitForRoom) {
  options_.full_disk = absl::Minutes(2);
  Restart();
  const std::string id = Running();
  for (int i = 1; i <= 4; ++i) {
    AllEnd(jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the disk is full"));
    ASSERT_EQ(StateOf(id), jobs::JobState::kPending) << i;
    Pass(options_.longest_pause);
    AllStart();
    manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = i});
  }
}

TEST_F(ManagerTest, DataThatChangedPauseTheJobUntilSomebodyResumesIt) {
  const std::string id = Running();
  // From any rank; rank 0 may have reported a loss.
  manager_->runs().OnTraining(1, trainers_[1]->epoch(),
                              jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::UnavailableError("rank 1 left")});
  manager_->runs().OnTraining(
      2, trainers_[1]->epoch(),
      jobs::TrainEnd{jobs::TrainOutcome::kBlocked, absl::FailedPreconditionError("a.bin: changed")});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  EXPECT_EQ(ReasonOf(id), "DATASET_CHANGED: a.bin: changed");
  EXPECT_EQ(Get(id)->error.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(switchyard::rpc::ReasonOf(journal_.kept.begin()->second.error), v1::DATASET_CHANGED);
  EXPECT_EQ(manager_->counts().blocks, 1);
  EXPECT_EQ(manager_->counts().losses, 0);
  Pass(absl::Hours(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  ASSERT_TRUE(manager_->Resume(id).ok());
  Pass(absl::ZeroDuration());
  AllStart(4);
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  EXPECT_TRUE(Get(id)->error.ok());
}

TEST_F(ManagerTest, WhatWasAskedForOutlivesABlock) {
  const std::string id = Running();
  ASSERT_TRUE(manager_->Cancel(id).ok());
  AllEnd(jobs::TrainOutcome::kBlocked, absl::FailedPreconditionError("a.bin: changed"));
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
}

}  // namespace
}  // namespace switchyard::server
