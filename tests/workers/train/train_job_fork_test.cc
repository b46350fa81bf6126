// A fork: a job whose folder begins with another job's checkpoint, under a spec that may differ.
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

constexpr int kWorld = 2;

class TrainJobForkTest : public JobFixture {
 protected:
  // Rates do not depend on the number of steps.
  jobs::JobSpec Constant(int64_t steps = 12) const {
    jobs::JobSpec spec = Spec();
    spec.steps = steps;
    spec.optimizer.schedule.shape = jobs::LrShape::kConstant;
    spec.checkpoints.keep_last = 9;
    return spec;
  }
  // Runs the job and keeps its folder as "parent".
  std::vector<RankStory> RunParent(const jobs::JobSpec& spec) {
    std::filesystem::remove_all(ParentPath());
    std::vector<RankStory> stories = Run(spec, {.world = kWorld, .attempt = 3});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    std::filesystem::rename(JobPath(), ParentPath());
    return stories;
  }
  std::string ParentPath(const std::string& name = "") const { return root_.path() + "/checkpoints/parent/" + name; }
  static jobs::ForkOrigin From(int64_t step) { return {.job = "parent", .step = step, .attempts = 3}; }
  // Makes the fork's folder, as the server does.
  void Seed(int64_t step) {
    ForgetJob();
    const std::string folder = checkpoint::StepFolder(step);
    std::filesystem::create_directories(JobPath(folder));
    for (const auto& entry : std::filesystem::directory_iterator(ParentPath(folder))) {
      std::filesystem::create_hard_link(entry.path(), JobPath(folder + "/" + entry.path().filename().string()));
    }
  }
  std::vector<RankStory> Fork(const jobs::JobSpec& spec, const jobs::ForkOrigin& origin, int world = kWorld) {
    Seed(origin.step);
    return Run(spec, {.world = world, .attempt = 4, .origin = origin});
  }
  static std::vector<double> Losses(const std::vector<RankStory>& stories, int64_t after = 0) {
    std::vector<double> losses;
    for (const StepProgress& step : stories[0].steps) {
      if (step.step > after) losses.push_back(step.report.loss);
    }
    return losses;
  }
  static void ExpectFinished(const std::vector<RankStory>& stories) {
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  }
};

TEST_F(TrainJobForkTest, WithoutChangesItHasTheParentsBits) {
  const std::vector<double> losses = Losses(RunParent(Spec()), 8);
  const std::map<std::string, std::string> before = [&] {
    Seed(12);
    return FilesOfStep(12);
  }();
  const std::vector<RankStory> fork = Fork(Spec(), From(8));
  ExpectFinished(fork);
  EXPECT_EQ(fork[0].start_step, 8);
  EXPECT_EQ(Losses(fork), losses);
  EXPECT_TRUE(FilesOfStep(12) == before);
}

TEST_F(TrainJobForkTest, MoreStepsAreThoseOfALongerJob) {
  const std::map<std::string, std::string> longer = Undisturbed(Constant(20), kWorld);
  RunParent(Constant(12));
  const std::vector<RankStory> fork = Fork(Constant(20), From(12));
  ExpectFinished(fork);
  EXPECT_EQ(fork[0].steps.size(), 8u);
  EXPECT_TRUE(FilesOfStep(20) == longer);
}

TEST_F(TrainJobForkTest, OtherHyperParametersChangeOnlyWhatFollows) {
  const std::vector<double> losses = Losses(RunParent(Constant()), 8);
  const std::vector<std::function<void(jobs::JobSpec*)>> changes = {
      [](jobs::JobSpec* s) { s->optimizer.schedule.peak /= 2; },
      [](jobs::JobSpec* s) { s->optimizer.schedule.shape = jobs::LrShape::kLinear; },
      [](jobs::JobSpec* s) { s->optimizer.weight_decay = 0; },
      [](jobs::JobSpec* s) { s->optimizer.clip_norm = 1e-3; },
      [](jobs::JobSpec* s) { s->balance_weight = 0.5; },
      [](jobs::JobSpec* s) { s->capacity_factor = 0.5; },
      [](jobs::JobSpec* s) { s->dropout.attention = 0.1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    jobs::JobSpec spec = Constant();
    changes[i](&spec);
    const std::vector<RankStory> fork = Fork(spec, From(8));
    ExpectFinished(fork);
    const std::vector<double> changed = Losses(fork);
    ASSERT_EQ(changed.size(), losses.size());
    // The state is the parent's, so the first loss is (but with a capacity or dropout, which count in the forward
    // pass).
    if (spec.capacity_factor == 0 && !spec.dropout.attention.has_value()) {
      EXPECT_EQ(changed[0], losses[0]);
    }
    EXPECT_NE(changed[3], losses[3]);
    EXPECT_NEAR(changed[3], losses[3], 0.2 * losses[3]);
  }
}

TEST_F(TrainJobForkTest, OtherCheckpointsEvaluationsAndWorkersAreAllowed) {
  const std::vector<double> losses = Losses(RunParent(Constant()), 8);
  jobs::JobSpec spec = Constant();
  spec.checkpoints.every_steps = 3;
  spec.evaluate_every_steps = 2;
  const std::vector<RankStory> fork = Fork(spec, From(8));
  ExpectFinished(fork);
  EXPECT_EQ(Losses(fork), losses);
  EXPECT_THAT(Steps(), testing::ElementsAre("step-00000008", "step-00000009", "step-00000012"));

  const std::vector<RankStory> alone = Fork(Constant(), From(8), /*world=*/1);
  ExpectFinished(alone);
  EXPECT_THAT(alone[0].warnings, testing::ElementsAre(HasSubstr("2 ranks, now 1")));
  EXPECT_NEAR(Losses(alone)[0], losses[0], 1e-5);
}

// The samples go on, in batches of the new size: a fork with half the batch sees those of the parent's next step in
// two.
TEST_F(TrainJobForkTest, OtherBatchesGoOnWhereTheParentWas) {
  RunParent(Constant());
  jobs::JobSpec spec = Constant();
  spec.optimizer.schedule.peak = 1e-12;  // so that losses are those of the same weights
  const std::vector<double> whole = Losses(Fork(spec, From(8)));
  spec.batch_sequences = 4;
  const std::vector<RankStory> fork = Fork(spec, From(8));
  ExpectFinished(fork);
  const std::vector<double> halves = Losses(fork);
  ASSERT_EQ(halves.size(), 4u);
  EXPECT_NEAR((halves[0] + halves[1]) / 2, whole[0], 1e-5);
  EXPECT_NEAR((halves[2] + halves[3]) / 2, whole[1], 1e-5);

  // An attempt that goes on from the fork's own checkpoint is in place, too.
  spec.checkpoints.every_steps = 2;
  Fork(spec, From(8));
  std::filesystem::remove_all(JobPath("step-00000012"));
  std::filesystem::remove(JobPath("LATEST"));
  const std::vector<RankStory> again = Run(spec, {.world = kWorld, .attempt = 5, .origin = From(8)});
  ExpectFinished(again);
  EXPECT_EQ(again[0].start_step, 10);
  EXPECT_EQ(Losses(again), Losses(fork, 10));
}

TEST_F(TrainJobForkTest, SkippedBatchesArePassedOver) {
  jobs::JobSpec still = Constant(16);
  still.optimizer.schedule.peak = 1e-12;
  const std::vector<double> losses = Losses(RunParent(still), 8);
  jobs::ForkOrigin origin = From(8);
  origin.skipped_sequences = 2 * still.batch_sequences;
  const std::vector<RankStory> fork = Fork(still, origin);
  ExpectFinished(fork);
  for (size_t i = 0; i + 2 < losses.size(); ++i) EXPECT_NEAR(Losses(fork)[i], losses[i + 2], 1e-6) << i;
}

TEST_F(TrainJobForkTest, OtherDataBeginAtTheirFirstSequence) {
  jobs::JobSpec still = Constant();
  still.optimizer.schedule.peak = 1e-12;
  RunParent(still);
  const std::vector<jobs::TrainFile> files = data_;
  data_ = {{false, "a.bin"}};
  const std::vector<double> anew = Losses(Run(still, {.world = kWorld}));
  jobs::ForkOrigin origin = From(8);
  origin.other_data = true;
  const std::vector<RankStory> fork = Fork(still, origin);
  ExpectFinished(fork);
  ASSERT_EQ(Losses(fork).size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(Losses(fork)[i], anew[i], 1e-6) << i;

  // Unless it says so, files that are others are files that have changed: the job waits for them.
  const std::vector<RankStory> refused = Fork(still, From(8));
  ExpectEnd(refused, jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "datasets: was 2 files, is 1");
}

TEST_F(TrainJobForkTest, ALostAttemptOfAForkEndsWithTheSameBits) {
  RunParent(Constant());
  jobs::JobSpec spec = Constant(20);
  spec.optimizer.schedule.peak /= 2;
  ExpectFinished(Fork(spec, From(8)));
  const std::map<std::string, std::string> calm = FilesOfStep(20);
  Seed(8);
  AttemptOptions lost = {.world = kWorld, .attempt = 4, .origin = From(8)};
  lost.on_saved = [](TrainJob*, comm::Communicator* comm, const SavedStep& saved) {
    if (saved.step == 12) comm->Abort("a rank is lost");
  };
  EXPECT_EQ(Run(spec, lost)[0].end.outcome, jobs::TrainOutcome::kLost);
  const std::vector<RankStory> again = Run(spec, {.world = kWorld, .attempt = 5, .origin = From(8)});
  ExpectFinished(again);
  EXPECT_EQ(again[0].start_step, 12);
  EXPECT_TRUE(FilesOfStep(20) == calm);
}

TEST_F(TrainJobForkTest, WhatTheCheckpointDoesNotFitIsRefused) {
  RunParent(Spec());
  jobs::JobSpec spec = Spec();
  spec.dtype = jobs::TrainDType::kBf16;
  EXPECT_THAT(std::string(Fork(spec, From(8))[0].end.status.message()), HasSubstr("dtype: was fp32, is bf16"));
  // What is no fork still needs the same spec.
  Seed(8);
  spec = Spec();
  spec.steps = 20;
  ExpectEnd(Run(spec, {.world = kWorld, .attempt = 4}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition, "steps: was 12, is 20");
}

// It must not begin anew in silence.
TEST_F(TrainJobForkTest, WithoutItsCheckpointItFails) {
  RunParent(Spec());
  Seed(8);
  std::filesystem::remove_all(JobPath("step-00000008"));
  const std::vector<RankStory> gone = Run(Spec(), {.world = kWorld, .attempt = 4, .origin = From(8)});
  ExpectEnd(gone, jobs::TrainOutcome::kFailed, absl::StatusCode::kFailedPrecondition,
            "the job is a fork of parent at step 8, and its folder has no checkpoint");
  Seed(8);
  const std::string path = JobPath("step-00000008/trainer_state.json");
  std::string text = ReadAll(path);
  text[text.size() / 2] ^= 1;
  std::filesystem::remove(path);
  root_.Write(path.substr(root_.path().size() + 1), text);
  const std::vector<RankStory> damaged = Run(Spec(), {.world = kWorld, .attempt = 4, .origin = From(8)});
  ExpectEnd(damaged, jobs::TrainOutcome::kFailed, absl::StatusCode::kDataLoss, "trainer_state.json");
}

}  // namespace
}  // namespace switchyard::train
