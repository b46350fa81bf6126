// Faults of jobs' workers: they die, hang or send wrong reports.
#include "server/jobs/job_manager.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(ManagerTest, ALostWorkerMakesAnotherAttempt) {
  const std::string id = Running();
  Step(5);
  const int64_t old = trainers_[1]->epoch();
  host_.how_ended = "signal 9 (Killed)";
  manager_->runs().OnTrainerLost(2, "its link ended");
  EXPECT_THAT(trainers_[1]->commands, ElementsAre(absl::StrCat("abort ", old)));
  EXPECT_EQ(trainers_[1]->last_reason, "rank 1 (pid 1002 on here): process ended with signal 9 (Killed)");
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning) << "rank 0 has not ended";
  manager_->runs().OnTraining(1, old, jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::AbortedError("aborted")});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  EXPECT_THAT(ReasonOf(id), HasSubstr("signal 9 (Killed)"));
  trainers_.erase(2);
  Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending) << "one worker is not enough";
  Connect(3);
  manager_->Tick();
  EXPECT_EQ(trainers_[3]->assignments[0].attempt, 2);
  EXPECT_GT(trainers_[3]->epoch(), old);

  // Late reports of the old epoch are ignored.
  manager_->runs().OnTraining(1, old, TrainingStarted{.step = 0});
  manager_->runs().OnTraining(3, old, TrainingStarted{.step = 0});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  jobs::TrainProgress late;
  late.step = 99;
  manager_->runs().OnTraining(1, old, late);
  manager_->runs().OnTraining(1, old, jobs::SavedCheckpoint{.step = 99});
  manager_->runs().OnTraining(1, old, jobs::EvaluationReport{.result = {.step = 99}});
  manager_->runs().OnTraining(1, old, jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}});
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  EXPECT_EQ(Get(id)->progress->step, 5);
  EXPECT_FALSE(Get(id)->checkpoint.has_value());
}

TEST_F(ManagerTest, OnlyRankZeroReportsSteps) {
  const std::string id = Running();
  jobs::TrainProgress progress;
  progress.step = 7;
  manager_->runs().OnTraining(2, trainers_[2]->epoch(), progress);
  EXPECT_FALSE(Get(id)->progress.has_value());
  Connect(3);  // refused: two are registered
  EXPECT_EQ(trainers_[3]->closed.code(), absl::StatusCode::kResourceExhausted);
  manager_->runs().OnTraining(3, trainers_[1]->epoch(), progress);
  EXPECT_FALSE(Get(id)->progress.has_value());
}

TEST_F(ManagerTest, AStepBeforeTheLastStartIsAStart) {
  const std::string id = Begun();
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), TrainingStarted{.step = 0});
  Step(1);  // the other rank's report is still on its way
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  manager_->runs().OnTraining(2, trainers_[1]->epoch(), TrainingStarted{.step = 0});
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  EXPECT_THAT(sink_.lines, ElementsAre("started 0", "step 1"));
}

TEST_F(ManagerTest, LostAgainAndAgainFails) {
  const std::string id = Running();
  Step(5);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
    AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError(absl::StrCat("no ", i)));
    const int pause_ms = 250 << (i - 1);
    if (i == 3) break;
    EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
    Pass(absl::Milliseconds(pause_ms - 1));
    EXPECT_EQ(StateOf(id), jobs::JobState::kPending) << "it pauses " << pause_ms << " ms";
    Pass(absl::Milliseconds(1));
    AllStart();
    Step(5);  // no further than before
  }
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_EQ(Get(id)->error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Get(id)->error.message()), HasSubstr("lost 3 times without getting ahead; at last: rank 0"));
}

TEST_F(ManagerTest, WhoGetsAheadMayBeLostForEver) {
  const std::string id = Running();
  for (int i = 1; i <= 10; ++i) {
    if (i % 2 == 0) {
      Step(i);
    } else {
      manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::SavedCheckpoint{.step = i});
    }
    AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError("gone"));
    ASSERT_EQ(StateOf(id), jobs::JobState::kPending) << i;
    Pass(absl::Seconds(1));
    AllStart();
  }
  EXPECT_EQ(Get(id)->attempt, 11);
}

TEST_F(ManagerTest, AFailureIsFinal) {
  const std::string id = Running();
  manager_->runs().OnTraining(
      2, trainers_[1]->epoch(),
      jobs::TrainEnd{jobs::TrainOutcome::kFailed, absl::DataLossError("step 3: loss is not finite")});
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("abort ", trainers_[1]->epoch()));
  manager_->runs().OnTraining(1, trainers_[1]->epoch(),
                              jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::AbortedError("as asked")});
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_EQ(Get(id)->error, absl::DataLossError("step 3: loss is not finite"));
  EXPECT_EQ(manager_->counts().not_finite, 1);
  EXPECT_EQ(journal_.kept.begin()->second.error, Get(id)->error);
}

TEST_F(ManagerTest, AFailureCountsAlsoBehindTheLossThatItWasTakenFor) {
  const std::string id = Running();
  const int64_t epoch = trainers_[1]->epoch();
  manager_->runs().OnTraining(1, epoch,
                              jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::UnavailableError("rank 1 has left")});
  manager_->runs().OnTraining(2, epoch, jobs::TrainEnd{jobs::TrainOutcome::kFailed, absl::DataLossError("no number")});
  EXPECT_EQ(StateOf(id), jobs::JobState::kFailed);
  EXPECT_EQ(Get(id)->error, absl::DataLossError("no number"));
  EXPECT_EQ(manager_->counts().not_finite, 0);
}

TEST_F(ManagerTest, WhatRankZeroIsDoingIsReported) {
  const std::string id = Begun();
  const int64_t epoch = trainers_[1]->epoch();
  Pass(options_.limits.form - absl::Seconds(1));
  manager_->runs().OnTraining(1, epoch, std::string("looks for a checkpoint"));
  manager_->runs().OnTraining(2, epoch, std::string("not rank 0"));
  manager_->runs().OnTraining(1, epoch - 1, std::string("of another epoch"));
  EXPECT_EQ(Get(id)->note, "looks for a checkpoint");
  Pass(options_.limits.form - absl::Seconds(1));
  EXPECT_TRUE(trainers_[1]->commands.empty()) << "it still works";
  Pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[1]->commands.size(), 1u);
}

TEST_F(ManagerTest, RankZerosEndCountsWhateverBecomesOfOthers) {
  const std::string id = Running();
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::TrainEnd{jobs::TrainOutcome::kFinished, {}});
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  manager_->runs().OnTrainerLost(2, "gone");
  EXPECT_EQ(StateOf(id), jobs::JobState::kSucceeded);
}

TEST_F(ManagerTest, LossesWhilePausingAndCancelling) {
  const std::string paused = Running();
  ASSERT_TRUE(manager_->Pause(paused).ok());
  AllEnd(jobs::TrainOutcome::kLost, absl::UnavailableError("gone"));
  EXPECT_EQ(StateOf(paused), jobs::JobState::kPaused);
  const std::string cancelled = Submit(Spec());
  manager_->Tick();
  AllStart();
  ASSERT_TRUE(manager_->Cancel(cancelled).ok());
  manager_->runs().OnTrainerLost(1, "gone");
  manager_->runs().OnTrainerLost(2, "gone");
  EXPECT_EQ(StateOf(cancelled), jobs::JobState::kCancelled);
}

TEST_F(ManagerTest, WhoDoesNotStartStopOrEndIsGivenUp) {
  const std::string id = Begun();
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), TrainingStarted{.step = 0});
  Pass(options_.limits.form);
  EXPECT_THAT(trainers_[1]->last_reason, HasSubstr("waited 10m for all ranks to start, rank 1 (pid 1002"));
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), jobs::TrainEnd{jobs::TrainOutcome::kLost, {}});
  Pass(options_.limits.abort);
  EXPECT_EQ(trainers_[2]->closed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(host_.killed, ElementsAre(2));
  EXPECT_EQ(manager_->counts().workers, 1) << "nobody gets it any more";
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  manager_->runs().OnTrainerLost(2, "its link ended");
  trainers_.erase(2);

  Connect(3);
  Pass(absl::Seconds(1));
  AllStart();
  EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
  Pass(options_.limits.stall - absl::Seconds(1));
  Step(1);
  Pass(options_.limits.stall - absl::Seconds(1));
  EXPECT_TRUE(trainers_[3]->commands.empty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(trainers_[3]->last_reason, HasSubstr("waited 1h10m for a step, rank 0 (pid 100"));
  AllEnd(jobs::TrainOutcome::kLost, absl::AbortedError("as asked"));

  Pass(absl::Seconds(1));
  AllStart();
  ASSERT_TRUE(manager_->Cancel(id).ok());
  Pass(options_.limits.cancel_save);
  EXPECT_THAT(trainers_[3]->commands.back(), HasSubstr("now "));
  Pass(options_.limits.stop_now);
  EXPECT_THAT(trainers_[3]->commands.back(), HasSubstr("abort "));
  Pass(options_.limits.abort);
  EXPECT_EQ(StateOf(id), jobs::JobState::kCancelled);
}

TEST_F(ManagerTest, AWorkerWhoseWordsLieUnreadIsNotFenced) {
  Running();
  host_.has_unread = true;
  for (const absl::Time end = host_.now + 2 * options_.trainers.silence; host_.now < end;) {
    host_.now += absl::Milliseconds(50);
    manager_->Tick();
  }
  EXPECT_TRUE(trainers_[1]->closed.ok() && trainers_[2]->closed.ok()) << trainers_[2]->closed;
}

TEST_F(ManagerTest, ASilentWorkerIsFenced) {
  const std::string id = Running();
  const int64_t epoch = trainers_[1]->epoch();
  const auto pass = [&](absl::Duration time) {  // the second worker stays silent meanwhile
    for (const absl::Time end = host_.now + time; host_.now < end;) {
      host_.now += absl::Milliseconds(50);
      manager_->runs().OnTrainerHeartbeat(1);
      manager_->Tick();
    }
  };
  pass(options_.trainers.silence - absl::Seconds(1));
  host_.now += absl::Seconds(6);  // the server itself was paused
  manager_->Tick();
  EXPECT_TRUE(trainers_[1]->closed.ok() && trainers_[2]->closed.ok()) << trainers_[2]->closed;
  pass(absl::Seconds(1));
  EXPECT_EQ(trainers_[2]->closed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(host_.killed, ElementsAre(2));
  EXPECT_EQ(trainers_[1]->commands.back(), absl::StrCat("abort ", epoch));
  manager_->runs().OnTraining(1, epoch, jobs::TrainEnd{jobs::TrainOutcome::kLost, absl::AbortedError("aborted")});
  manager_->runs().OnTrainerLost(2, "its link ended");  // as its link reports later
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
}

TEST_F(ManagerTest, OnlyWorkersThatAreAlikeMakeAGroup) {
  Configure(3);
  Connect(1, "avx2");
  Connect(2, "amx");
  const std::string id = Submit(Spec());
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPending);
  Connect(3, "amx");
  manager_->Tick();
  EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
  EXPECT_TRUE(trainers_[1]->assignments.empty());
  EXPECT_EQ(trainers_[2]->assignments[0].rank, 0);
}

TEST_F(ManagerTest, StrangersAreRefused) {
  fleet::WorkerInfo info;
  info.incarnation = "x";
  info.join_token = "wrong";
  FakeTrainer stranger;
  auto client = std::make_shared<FakeTrainer>();
  manager_->runs().OnTrainer(9, client, info);
  EXPECT_EQ(client->closed.code(), absl::StatusCode::kUnauthenticated);
  info.join_token = "token";
  manager_->runs().OnTrainer(10, std::make_shared<FakeTrainer>(), info);
  manager_->runs().OnTrainer(11, client, info);
  EXPECT_EQ(client->closed.code(), absl::StatusCode::kAlreadyExists);
}

// The counts for metrics, over attempts and losses.
TEST_F(ManagerTest, TheStatsCount) {
  ConnectBoth();
  const std::string id = Submit(Spec(1)), other = Submit(Spec(1)), waiting = Submit(Spec(1));
  manager_->Tick();
  manager_->runs().OnTraining(1, trainers_[1]->epoch(), TrainingStarted{.step = 0});
  manager_->runs().OnTraining(2, trainers_[2]->epoch(), TrainingStarted{.step = 0});
  Step(3, 2);
  manager_->runs().OnTraining(2, trainers_[2]->epoch(),
                              jobs::SavedCheckpoint{.step = 3, .saved_unix_ms = host_.UnixMs()});
  host_.now += absl::Seconds(2);
  const TrainingCounts& counts = manager_->counts();
  EXPECT_EQ(counts.jobs[static_cast<int>(jobs::JobState::kRunning)], 2);
  EXPECT_EQ(counts.jobs[static_cast<int>(jobs::JobState::kPending)], 1);
  EXPECT_EQ(counts.workers, 2);
  EXPECT_EQ(counts.busy_workers, 2);
  EXPECT_EQ(counts.attempts, 2);
  EXPECT_EQ(counts.steps, 1);
  EXPECT_EQ(counts.tokens, 96);
  EXPECT_EQ(counts.seconds.total, 0.5);
  ASSERT_EQ(counts.slots.size(), 1u) << "the other has done no step";
  EXPECT_EQ(counts.slots.at(1).progress.step, 3);
  EXPECT_EQ(counts.slots.at(1).checkpoint_step, 3);
  EXPECT_DOUBLE_EQ(counts.slots.at(1).checkpoint_age_seconds, 2);

  // Repeated steps do not count tokens again; further steps do.
  for (const int64_t step : {1, 2, 3, 4}) Step(step, 2);
  EXPECT_EQ(manager_->counts().steps, 5);
  EXPECT_EQ(manager_->counts().tokens, 128);
}

}  // namespace
}  // namespace switchyard::server
