// Training jobs that are paused and resumed, end to end: with the bits of an undisturbed run, on fewer workers.
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

TEST(TrainingPausesTest, PausedAndResumedItHasTheBitsOfAnUndisturbedRun) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  // Long enough that the pause comes before the end, also on a busy machine.
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.set_steps(400);
  spec.mutable_checkpoints()->set_every_steps(100);
  spec.mutable_communication()->set_granularity("1");  // measured numbers of chunks may differ between two jobs
  const auto undisturbed = training.Submit(spec);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  const v1::Job whole = training.WaitUntilIn(undisturbed->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(whole.state(), v1::JOB_STATE_SUCCEEDED) << whole.DebugString();

  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const std::string id = submitted->id();
  training.WaitFor(id, [](const v1::Job& job) { return job.progress().step() >= 5; });
  ASSERT_TRUE(training.Pause(id).ok());
  const v1::Job paused = training.WaitUntilIn(id, v1::JOB_STATE_PAUSED);
  ASSERT_EQ(paused.state(), v1::JOB_STATE_PAUSED) << paused.DebugString();
  EXPECT_EQ(paused.checkpoint().step(), paused.progress().step());
  ASSERT_TRUE(training.Resume(id).ok());
  const v1::Job job = training.WaitUntilIn(id, v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  EXPECT_EQ(job.attempt(), 2);
  EXPECT_EQ(job.progress().loss(), whole.progress().loss());
  const auto contents = TrainingServer::Contents(training.root() / "checkpoints" / whole.checkpoint().folder());
  EXPECT_EQ(contents.size(), 4u) << "weights and optimizer of two ranks";
  EXPECT_TRUE(TrainingServer::Contents(training.root() / "checkpoints" / job.checkpoint().folder()) == contents);
  EXPECT_EQ(training.Cancel(id).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TrainingPausesTest, PausedOnTwoWorkersItGoesOnWithOne) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  // Long enough that the pause comes before the end, also on a busy machine.
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.set_steps(400);
  spec.mutable_checkpoints()->set_every_steps(100);
  const auto undisturbed = training.Submit(spec);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  const v1::Job whole = training.WaitUntilIn(undisturbed->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(whole.state(), v1::JOB_STATE_SUCCEEDED) << whole.DebugString();

  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const std::string id = submitted->id();
  training.WaitFor(id, [](const v1::Job& job) { return job.progress().step() >= 5; });
  ASSERT_TRUE(training.Pause(id).ok());
  ASSERT_EQ(training.WaitUntilIn(id, v1::JOB_STATE_PAUSED).state(), v1::JOB_STATE_PAUSED);
  const auto resume = Process::Start({Binary("switchyard"), "train", "resume", id, "--workers=1",
                                      absl::StrCat("--server=", training.server()->admin_address())});
  EXPECT_EQ(resume->Wait(kStartLimit), 0) << resume->Output();
  const v1::Job job = training.WaitUntilIn(id, v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  EXPECT_EQ(job.attempt(), 2);
  EXPECT_EQ(job.spec().workers(), 1);
  EXPECT_EQ(job.submitted_workers(), 2);
  EXPECT_EQ(job.progress().step(), 400);
  // The samples and their order are the same, so only the rounding differs, from the step of the pause on.
  EXPECT_NEAR(job.progress().loss(), whole.progress().loss(), 0.1 * whole.progress().loss());
  const auto contents = TrainingServer::Contents(training.root() / "checkpoints" / job.checkpoint().folder());
  EXPECT_EQ(contents.size(), 2u) << "weights and optimizer of one rank";
}

}  // namespace
}  // namespace switchyard
