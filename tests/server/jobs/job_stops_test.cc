// Jobs that a user or their time limit stops: pauses, cancels, and the checkpoints that these save.
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(ManagerTest, PauseAndResume) {
  const std::string id = Running();
  ASSERT_TRUE(manager_->Pause(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPausing);
  EXPECT_THAT(trainers_[2]->commands, ElementsAre(absl::StrCat("save ", trainers_[2]->epoch())));
  ASSERT_TRUE(manager_->Pause(id).ok()) << "already on its way";
  EXPECT_EQ(trainers_[2]->commands.size(), 1u);
  EXPECT_EQ(ReasonIn(manager_->Resume(id).status()), "JOB_STATE");
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPaused);
  ASSERT_TRUE(manager_->Resume(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->assignments.back().attempt, 2);
  AllStart(10);
  EXPECT_THAT(ReasonOf(id), HasSubstr("goes on from step 10"));
}

TEST_F(ManagerTest, CancelInEveryState) {
  const std::string pending = Submit(Spec());
  ASSERT_TRUE(manager_->Cancel(pending).ok());
  EXPECT_EQ(StateOf(pending), jobs::JobState::kCancelled);
  ASSERT_TRUE(manager_->Cancel(pending).ok()) << "it is so";

  const std::string packing = Submit(TextSpec());
  ConnectBoth();
  manager_->Tick();
  ASSERT_TRUE(manager_->Cancel(packing).ok());
  EXPECT_EQ(StateOf(packing), jobs::JobState::kCancelling);
  EXPECT_THAT(host_.cancelled, ElementsAre(packing));
  manager_->runs().OnPrepared(packing, absl::CancelledError(""));
  EXPECT_EQ(StateOf(packing), jobs::JobState::kCancelled);

  const std::string forming = Submit(Spec());
  manager_->Tick();
  ASSERT_TRUE(manager_->Cancel(forming).ok());
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("abort ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kLost, absl::AbortedError("as asked"));
  EXPECT_EQ(StateOf(forming), jobs::JobState::kCancelled);

  const std::string running = Submit(Spec());
  manager_->Tick();
  AllStart();
  ASSERT_TRUE(manager_->Pause(running).ok());
  ASSERT_TRUE(manager_->Cancel(running).ok());
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("save ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(running), jobs::JobState::kCancelled);
  EXPECT_EQ(ReasonOf(running), "its workers have stopped; it has done no step");

  const std::string done = Submit(Spec());
  manager_->Tick();
  AllStart();
  AllEnd(jobs::TrainOutcome::kFinished);
  for (const auto& [answer, asked] :
       {std::pair(manager_->Cancel(done), "cancel"), std::pair(manager_->Pause(done), "pause"),
        std::pair(manager_->Resume(done), "resume")}) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(answer.status().message(), absl::StrCat("job is SUCCEEDED: cannot ", asked));
    EXPECT_EQ(ReasonIn(answer.status()), "JOB_STATE");
  }
}

TEST_F(ManagerTest, CancelSavesFirst) {
  const std::string id = Running();
  Step(123);
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 123, .folder = "x"});
  Step(179);
  ASSERT_TRUE(manager_->Cancel(id).ok());
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelling);
  for (const WorkerId rank : {1, 2}) {
    EXPECT_THAT(trainers_[rank]->commands, ElementsAre(absl::StrCat("save ", trainers_[rank]->epoch())));
  }
  Step(180);  // this step was under way
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 180, .folder = "y"});
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_EQ(Get(id)->checkpoint->step, 180);
  EXPECT_EQ(ReasonOf(id), "its workers have stopped; saved at step 180");
}

TEST_F(ManagerTest, CancelWaitsForASaveOnlySoLong) {
  const std::string id = Running();
  Step(7);
  ASSERT_TRUE(manager_->Pause(id).ok());
  ASSERT_TRUE(manager_->Cancel(id).ok()) << "what a pause saves is not waited for longer";
  Pass(options_.limits.cancel_save - absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->commands.size(), 1u);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->commands.back(), absl::StrCat("now ", trainers_[2]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
  EXPECT_EQ(ReasonOf(id), "its workers have stopped; steps 1 to 7 are not saved");
}

TEST_F(ManagerTest, ASaveThatSaysHowFarItIsMayTakeLong) {
  const std::string id = Running();
  Step(7);
  ASSERT_TRUE(manager_->Pause(id).ok());
  const auto note = [&] {
    manager_->runs().OnTraining(1, trainers_[1]->epoch(), std::string("saves step 8: 1 of 2 MiB"));
  };
  for (int i = 0; i < 3; ++i) {
    Pass(options_.limits.stall - absl::Seconds(1));
    note();
  }
  EXPECT_EQ(trainers_[2]->commands.size(), 1u) << "it still saves";
  ASSERT_TRUE(manager_->Cancel(id).ok());
  Pass(options_.limits.cancel_save - absl::Seconds(1));
  note();
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->commands.back(), absl::StrCat("now ", trainers_[2]->epoch())) << "a cancel waits no longer";
}

TEST_F(ManagerTest, ASaveThatSaysNothingIsGivenUp) {
  const std::string id = Running();
  ASSERT_TRUE(manager_->Pause(id).ok());
  Pass(options_.limits.stall - absl::Seconds(1));
  Step(1);  // it was under way
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->last_reason,
            "waited 1h10m for all ranks to stop, rank 0 (pid 1001 on here), rank 1 (pid 1002 on here)");
}

TEST_F(ManagerTest, ASaveThatFailsOrWorkersThatAreLostDoNotKeepAJobFromItsEnd) {
  for (const jobs::TrainOutcome outcome :
       {jobs::TrainOutcome::kLost, jobs::TrainOutcome::kFailed, jobs::TrainOutcome::kBlocked}) {
    Restart();
    const std::string id = Running();
    Step(4);
    manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = 4, .folder = "x"});
    Step(5);
    ASSERT_TRUE(manager_->Cancel(id).ok());
    AllEnd(outcome, absl::ResourceExhaustedError("no space left"));
    EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
    EXPECT_THAT(ReasonOf(id), HasSubstr("no space left"));
    EXPECT_THAT(ReasonOf(id), testing::EndsWith("; step 5 is not saved"));
    EXPECT_TRUE(manager_->idle());
  }
}

TEST_F(ManagerTest, TooLongARuntimeEndsWithACheckpoint) {
  jobs::JobSpec spec = Spec();
  spec.max_runtime_seconds = 60;
  const std::string id = Running(spec);
  Pass(absl::Seconds(40));
  ASSERT_TRUE(manager_->Pause(id).ok());
  AllEnd(jobs::TrainOutcome::kStopped);
  Pass(absl::Hours(1));  // paused time does not count
  ASSERT_TRUE(manager_->Resume(id).ok());
  Pass(absl::Seconds(1));
  AllStart();
  Pass(absl::Seconds(19));
  EXPECT_EQ(trainers_[1]->commands.size(), 1u);
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("save ", trainers_[1]->epoch()));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_EQ(Get(id)->error, absl::DeadlineExceededError("max_runtime_seconds: ran 60 s of 60"));
}

}  // namespace
}  // namespace switchyard::server
