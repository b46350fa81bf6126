// Jobs on workers that also serve: which workers they get, jobs without slices, and that serving links survive it all.
#include "proto/support/errors.h"
#include "server/jobs/job_manager.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SlicesTest : public ManagerTest {
 protected:
  SlicesTest() {
    options_.serving_workers = 2;
    Restart();
  }
  static jobs::JobSpec Shared(int workers = 2) {
    jobs::JobSpec spec = Spec(workers);
    spec.on_serving_workers = true;
    spec.batch_sequences = 12;
    return spec;
  }
  // Lets time pass in which serving leaves all of it to training, or none.
  void PassOpen(absl::Duration time) {
    host_.slices_given += time;
    Pass(time);
  }
  std::string RunningShared() {
    ConnectServing(1);
    ConnectServing(2);
    const std::string id = Submit(Shared());
    manager_->Tick();
    AllStart();
    EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
    return id;
  }
};

TEST_F(SlicesTest, EachKindOfJobTakesItsKindOfWorkers) {
  Connect(1);
  Connect(2);
  FakeTrainer* serving = ConnectServing(3);
  const std::string shared = Submit(Shared());
  manager_->Tick();
  EXPECT_EQ(Get(shared)->note, "waits for workers: 1 of 2 are free");
  EXPECT_FALSE(host_.serving_wanted);
  // It does not hold back a job that wants training workers.
  const std::string alone = Submit(Spec());
  manager_->Tick();
  EXPECT_EQ(trainers_[1]->assignments.size(), 1u);
  EXPECT_EQ(StateOf(alone), jobs::JobState::kPreparing);
  ConnectServing(4);
  manager_->Tick();
  ASSERT_EQ(serving->assignments.size(), 1u);
  EXPECT_EQ(serving->assignments[0].job_id, shared);
  EXPECT_EQ(serving->assignments[0].world, 2);
  manager_->Tick();
  EXPECT_TRUE(host_.serving_wanted);
  EXPECT_EQ(manager_->counts().workers, 4);
  EXPECT_EQ(manager_->counts().busy_workers, 4);
}

TEST_F(SlicesTest, OneJobAtATime) {
  FakeTrainer* first = ConnectServing(1);
  FakeTrainer* second = ConnectServing(2);
  const std::string one = Submit(Shared(1));
  const std::string other = Submit(Shared(1));
  manager_->Tick();
  EXPECT_EQ(first->assignments.size(), 1u);
  EXPECT_THAT(second->assignments, IsEmpty());
  EXPECT_EQ(Get(other)->note, "waits for workers: 0 of 1 are free");
  manager_->runs().OnTraining(1, first->epoch(), TrainingStarted{.step = 0});
  manager_->runs().OnTraining(1, first->epoch(), jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}});
  EXPECT_EQ(StateOf(one), jobs::JobState::kSucceeded);
  manager_->Tick();
  ASSERT_EQ(first->assignments.size(), 2u);
  EXPECT_EQ(first->assignments[1].job_id, other);
}

TEST_F(SlicesTest, WhatCannotBeIsRefused) {
  absl::Status status = manager_->Submit("", Shared(3)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "spec.workers: needs 3 ranks, 0 alive, 2 configured to serve");
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason, "TOO_FEW_WORKERS");
  options_.serving_workers = 0;
  Restart();
  status = manager_->Submit("", Shared()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "spec.on_serving_workers: this server's serving workers do not train (--train_on_serving)");
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason, "NO_TRAINING");
  FakeTrainer* serving = ConnectServing(1);
  EXPECT_TRUE(serving->closed.ok()) << "it serves on";
}

TEST_F(SlicesTest, TimeWithoutSlicesIsNoStall) {
  const std::string id = RunningShared();
  PassOpen(absl::Minutes(20));
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  EXPECT_EQ(Get(id)->note, "");
  for (int i = 0; i < 10; ++i) Pass(absl::Hours(1));
  EXPECT_EQ(Get(id)->note, "waits for serving");
  EXPECT_THAT(trainers_[1]->commands, IsEmpty());
  PassOpen(absl::Milliseconds(50));
  EXPECT_EQ(Get(id)->note, "");
  // Twenty of the seventy minutes between steps are over.
  PassOpen(absl::Minutes(49));
  EXPECT_THAT(trainers_[1]->commands, IsEmpty());
  PassOpen(absl::Minutes(2));
  EXPECT_THAT(trainers_[1]->commands, ElementsAre(absl::StrCat("abort ", trainers_[1]->epoch())));
}

TEST_F(SlicesTest, AServerWithServingWorkersAloneSaysWhatItsUsersMayDo) {
  options_.serving_workers = 2;
  Configure(0);
  const absl::Status status = manager_->Submit("", Spec()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "this server has no training workers (--local_train_workers); its serving ones train jobs with "
            "on_serving_workers");
}

// max_runtime_seconds counts only the time in which the job could run.
TEST_F(SlicesTest, WaitingIsNoRuntime) {
  ConnectServing(1);
  ConnectServing(2);
  jobs::JobSpec spec = Shared();
  spec.max_runtime_seconds = 60;
  const std::string id = Submit(spec);
  manager_->Tick();
  AllStart();
  for (int i = 0; i < 10; ++i) Pass(absl::Hours(1));
  for (int i = 0; i < 59; ++i) PassOpen(absl::Seconds(1));
  EXPECT_THAT(trainers_[1]->commands, IsEmpty());
  PassOpen(absl::Seconds(2));
  EXPECT_THAT(trainers_[1]->commands, ElementsAre(absl::StrCat("save ", trainers_[1]->epoch())));
  AllEnd(jobs::TrainOutcome::kStopped);
  EXPECT_EQ(Get(id)->error, absl::DeadlineExceededError("max_runtime_seconds: ran 61 s of 60"));
}

TEST_F(SlicesTest, ACancelWaitsForNoSlice) {
  const std::string id = RunningShared();
  ASSERT_TRUE(manager_->Cancel(id).ok());
  EXPECT_THAT(trainers_[1]->commands, ElementsAre(HasSubstr("save")));
  Pass(options_.limits.cancel_save);
  ASSERT_EQ(trainers_[1]->commands.size(), 2u);
  EXPECT_THAT(trainers_[1]->commands[1], HasSubstr("now"));
  Pass(absl::Seconds(29));
  EXPECT_EQ(trainers_[1]->commands.size(), 2u);
  Pass(absl::Seconds(2));
  ASSERT_EQ(trainers_[1]->commands.size(), 3u);
  EXPECT_THAT(trainers_[1]->commands[2], HasSubstr("abort"));
}

TEST_F(SlicesTest, ALostWorkerIsAnotherAttempt) {
  const std::string id = RunningShared();
  manager_->runs().OnTrainerLost(2, "its link ended");
  EXPECT_THAT(trainers_[1]->commands, ElementsAre(absl::StrCat("abort ", trainers_[1]->epoch())));
  manager_->runs().OnTraining(1, trainers_[1]->epoch(),
                              jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::AbortedError("aborted")});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  trainers_.erase(2);
  ConnectServing(3);
  PassOpen(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->assignments.size(), 2u);
  EXPECT_EQ(trainers_[3]->assignments.size(), 1u);
}

// A serving worker is not ended because of its training; it gets another job after it has ended the attempt.
TEST_F(SlicesTest, WhoDoesNotEndServesOnAndGetsNoOtherJob) {
  const std::string id = RunningShared();
  const int64_t epoch = trainers_[1]->epoch();
  manager_->runs().OnTraining(2, epoch, jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::UnavailableError("x")});
  PassOpen(absl::Seconds(31));  // rank 0 does not end
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_TRUE(trainers_[1]->closed.ok());
  EXPECT_THAT(host_.killed, IsEmpty());
  PassOpen(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->assignments.size(), 1u);
  EXPECT_EQ(Get(id)->note, "waits for workers: 0 of 2 are free");
  manager_->runs().OnTraining(1, epoch, jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::AbortedError("late")});
  PassOpen(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->assignments.size(), 2u);
  EXPECT_EQ(trainers_[2]->assignments.size(), 2u);
}

// Only the serving group fences silent workers.
TEST_F(SlicesTest, NobodyIsFencedHere) {
  ConnectServing(1);
  host_.now += absl::Minutes(1);
  manager_->Tick();
  EXPECT_TRUE(trainers_[1]->closed.ok());
  EXPECT_THAT(host_.killed, IsEmpty());
  EXPECT_EQ(manager_->counts().workers, 1);
  manager_->End();
  EXPECT_TRUE(trainers_[1]->closed.ok());
}

}  // namespace
}  // namespace switchyard::server
