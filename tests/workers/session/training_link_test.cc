// Workers that train, from their registration on, against a server that says what the test wants: an attempt's whole
// life, its stop, its end from outside, and a server that goes and comes back.
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/security/credentials.h"
#include "tests/workers/session/training_link_fixture.h"
#include "workers/session/link_session.h"

namespace switchyard::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(TrainingLinkTest, RegistersWithoutAModel) {
  StartWorkers(1);
  const v1::Register registered = server_->Messages(0)[0].register_();
  EXPECT_EQ(registered.role(), "train");
  EXPECT_FALSE(registered.has_model());
  EXPECT_EQ(registered.weights_hash(), "");
  EXPECT_EQ(registered.device(), "cpu");
  EXPECT_FALSE(registered.isa().empty());
  EXPECT_EQ(registered.local_index(), 0);
  EXPECT_EQ(registered.collective_address(), "127.0.0.1");
}

TEST_F(TrainingLinkTest, TrainsAJobToItsEndAndWaitsForTheNext) {
  StartWorkers(2);
  Start(StartMessage(5, 1, 2));
  for (int worker = 0; worker < 2; ++worker) {
    const v1::TrainingEnded end = AwaitEnd(worker);
    EXPECT_EQ(end.epoch(), 5);
    EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_FINISHED) << end.message();
    EXPECT_EQ(end.code(), 0);
  }
  int64_t steps = 0;
  std::vector<std::string> saved;
  bool evaluated = false;
  for (const v1::LinkRequest& message : server_->Messages(0)) {
    if (message.has_training_started()) {
      EXPECT_EQ(message.training_started().epoch(), 5);
      EXPECT_EQ(message.training_started().step(), 0);
    } else if (message.has_training_step()) {
      const v1::TrainProgress& progress = message.training_step().progress();
      EXPECT_EQ(progress.step(), ++steps);
      EXPECT_GT(progress.loss(), 0);
      EXPECT_GT(progress.gradient_norm(), 0);
      EXPECT_GT(progress.learning_rate(), 0);
      EXPECT_EQ(progress.tokens(), steps * 48);
      EXPECT_EQ(progress.packing(), 1);
      EXPECT_GT(progress.tokens_per_second(), 0);
      EXPECT_GT(progress.seconds().forward(), 0);
      EXPECT_GT(progress.seconds().backward(), 0);
      EXPECT_GE(progress.seconds().total(), progress.seconds().forward() + progress.seconds().backward());
    } else if (message.has_training_saved()) {
      saved.push_back(message.training_saved().checkpoint().folder());
      EXPECT_GT(message.training_saved().checkpoint().bytes(), 0);
      EXPECT_GT(message.training_saved().checkpoint().saved_unix_ms(), 1'600'000'000'000);
    } else if (message.has_training_evaluated()) {
      evaluated = true;
      EXPECT_EQ(message.training_evaluated().result().step(), 6);
      EXPECT_EQ(message.training_evaluated().result().tokens(), 60);
      EXPECT_GT(message.training_evaluated().result().loss(), 0);
    }
  }
  EXPECT_EQ(steps, 6);
  EXPECT_THAT(saved, ElementsAre("job/step-00000002", "job/step-00000004", "job/step-00000006"));
  EXPECT_TRUE(evaluated);
  // The other rank reports that it began and ended, no more.
  for (const v1::LinkRequest& message : server_->Messages(1)) {
    EXPECT_TRUE(message.has_register_() || message.has_training_started() || message.has_training_ended())
        << message.ShortDebugString();
  }
  Start(StartMessage(6, 2, 2));
  EXPECT_EQ(AwaitStarted(1).step(), 6);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_FINISHED);
  EXPECT_EQ(AwaitEnd(1).outcome(), v1::TRAINING_OUTCOME_FINISHED);
}

TEST_F(TrainingLinkTest, StopsAtAStepOfAllRanks) {
  StartWorkers(2);
  v1::StartTraining start = StartMessage(5, 1, 2);
  start.mutable_spec()->set_steps(1'000'000);
  start.mutable_spec()->mutable_checkpoints()->set_every_steps(1'000'000);
  Start(start);
  AwaitStep(2);
  Stop(0, 4, v1::STOP_KIND_NOW);  // of another attempt: nothing stops
  AwaitStep(4);
  Stop(0, 5, v1::STOP_KIND_SAVE);
  Stop(1, 5, v1::STOP_KIND_SAVE);
  const v1::LinkRequest saved =
      server_->Await(0, &seen_[0], [](const v1::LinkRequest& message) { return message.has_training_saved(); });
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  EXPECT_EQ(AwaitEnd(1).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  start.set_epoch(6);
  start.set_attempt(2);
  start.set_store_token("another");
  Start(start);
  EXPECT_EQ(AwaitStarted(0).step(), saved.training_saved().checkpoint().step());
  Stop(0, 6, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  EXPECT_EQ(AwaitEnd(1).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

TEST_F(TrainingLinkTest, AStopThatComesBeforeTheGroupStandsIsKept) {
  StartWorkers(1);
  v1::StartTraining start = StartMessage(5, 1, 1);
  start.mutable_spec()->set_steps(1'000'000);
  Start(start);
  Stop(0, 5, v1::STOP_KIND_SAVE);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

TEST_F(TrainingLinkTest, AnAbortedAttemptIsLostAndTheNextGoesOn) {
  StartWorkers(2);
  v1::StartTraining start = StartMessage(5, 1, 2);
  start.mutable_spec()->set_steps(1'000'000);
  Start(start);
  AwaitStep(7);
  v1::LinkResponse abort;
  abort.mutable_abort_group()->set_epoch(5);
  abort.mutable_abort_group()->set_reason("worker 7 was lost");
  server_->Send(0, abort);
  server_->Send(1, abort);
  for (int worker = 0; worker < 2; ++worker) {
    const v1::TrainingEnded end = AwaitEnd(worker);
    EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_LOST);
    EXPECT_NE(end.code(), 0);
  }
  start.set_epoch(6);
  start.set_attempt(2);
  start.set_store_token("another");
  Start(start);
  EXPECT_GE(AwaitStarted(0).step(), 4);
  Stop(1, 6, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  EXPECT_EQ(AwaitEnd(1).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

TEST_F(TrainingLinkTest, AGroupThatDoesNotFormIsLost) {
  StartWorkers(1);
  v1::StartTraining start = StartMessage(5, 1, 2);
  start.set_form_deadline_ms(200);
  v1::LinkResponse message;
  *message.mutable_start_training() = start;
  server_->Send(0, message);
  const v1::TrainingEnded end = AwaitEnd(0);
  EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_LOST);
  EXPECT_FALSE(end.message().empty());
}

TEST_F(TrainingLinkTest, WhatItDoesNotUnderstandFails) {
  StartWorkers(1);
  v1::StartTraining start = StartMessage(5, 1, 1);
  start.mutable_spec()->set_precision(static_cast<v1::TrainPrecision>(77));
  Start(start);
  v1::TrainingEnded end = AwaitEnd(0);
  EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_FAILED);
  EXPECT_EQ(end.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(end.message(), HasSubstr("spec.precision: value 77 is not known to this worker"));
  start = StartMessage(6, 2, 1);
  start.mutable_data(0)->set_name("../secret.bin");
  Start(start);
  end = AwaitEnd(0);
  EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_FAILED);
  EXPECT_THAT(end.message(), HasSubstr("path must be under the dataset root"));
  start = StartMessage(7, 3, 1);
  start.set_job_id("../job");
  Start(start);
  EXPECT_THAT(AwaitEnd(0).message(), HasSubstr("is not a plain file name"));
}

TEST_F(TrainingLinkTest, AServerThatComesBackFindsItsWorkersAgain) {
  StartWorkers(2);
  v1::StartTraining start = StartMessage(5, 1, 2);
  start.mutable_spec()->set_steps(1'000'000);
  Start(start);
  AwaitStep(7);
  const int port = server_->port();
  server_.reset();
  server_ = std::make_unique<LinkServer>(port);
  seen_ = {0, 0};
  for (int worker = 0; worker < 2; ++worker) EXPECT_EQ(AwaitRegistration(worker).role(), "train");
  // It may count anew: an epoch of before is no reason to refuse.
  start.set_epoch(1);
  start.set_attempt(2);
  Start(start);
  EXPECT_GE(AwaitStarted(0).step(), 4);
  Stop(0, 1, v1::STOP_KIND_NOW);
  EXPECT_EQ(AwaitEnd(0).outcome(), v1::TRAINING_OUTCOME_STOPPED);
  EXPECT_EQ(AwaitEnd(1).outcome(), v1::TRAINING_OUTCOME_STOPPED);
}

// An attempt may wait for its disk for long, as this one does to say that it has started.
TEST_F(TrainingLinkTest, ALinksEndDoesNotWaitForTheAttemptButTheNextAttemptDoes) {
  const auto channel = ConnectToServer(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
  WorkerMetrics metrics;
  absl::Notification held, goes_on, ended;
  v1::TrainingEnded end;
  CoreShare share(&metrics);
  TrainingOptions options = Options();
  options.share = &share;  // else the link's end waits
  TrainingRole role(options, &metrics);
  share.gate.OpenFor(absl::Hours(1));
  std::unique_ptr<LinkHandler> handler = role.Begin(channel, {"127.0.0.1", false}, [&](v1::LinkRequest message) {
    if (message.has_training_started()) {
      held.Notify();
      goes_on.WaitForNotification();
    }
    return false;
  });
  v1::LinkResponse start;
  *start.mutable_start_training() = StartMessage(5, 1, 1);
  handler->Take(start);
  held.WaitForNotification();
  role.Abort(std::numeric_limits<int64_t>::max(), "the link to the server ended");
  handler = nullptr;
  handler = role.Begin(channel, {"127.0.0.1", false}, [&](v1::LinkRequest message) {
    if (message.has_training_ended()) {
      end = message.training_ended();
      ended.Notify();
    }
    return true;
  });
  // The server may count anew.
  *start.mutable_start_training() = StartMessage(1, 2, 1);
  handler->Take(start);
  EXPECT_FALSE(ended.HasBeenNotified()) << "there is one attempt at a time";
  goes_on.Notify();
  // (A slice that comes before the first attempt has ended is none of the next one's.)
  while (!ended.WaitForNotificationWithTimeout(absl::Milliseconds(20))) share.gate.OpenFor(absl::Minutes(1));
  EXPECT_EQ(end.epoch(), 1);
  EXPECT_EQ(end.outcome(), v1::TRAINING_OUTCOME_FINISHED) << end.message();
}

}  // namespace
}  // namespace switchyard::worker
