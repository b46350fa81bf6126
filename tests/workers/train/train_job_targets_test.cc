// Data with few or no targets: without any it is refused before training, and steps without a target are skipped.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using testing::Contains;
using testing::HasSubstr;

class TrainJobTargetsTest : public JobFixture {
 protected:
  // Two windows a step, each with or without targets: some steps have none.  Every step is saved.
  jobs::JobSpec SparseSpec() {
    WriteTokens("a.bin", 0, 400, 256, /*trained=*/false);
    jobs::JobSpec spec = Spec();
    spec.batch_sequences = 2;
    spec.micro_batch_sequences = 1;
    spec.checkpoints.every_steps = 1;
    spec.checkpoints.keep_last = 20;
    return spec;
  }

  static std::set<int64_t> Empty(const RankStory& story) {
    std::set<int64_t> empty;
    for (const StepProgress& progress : story.steps) {
      if (progress.report.tokens == 0) empty.insert(progress.step);
    }
    return empty;
  }

  // Weights, masters and moments.
  std::map<std::string, std::string> Parameters(int64_t step) const {
    std::map<std::string, std::string> files = FilesOfStep(step);
    std::erase_if(files, [](const auto& file) { return !absl::EndsWith(file.first, ".safetensors"); });
    EXPECT_FALSE(files.empty());
    return files;
  }
};

TEST_F(TrainJobTargetsTest, DataWithoutATargetIsRefused) {
  WriteTokens("a.bin", 0, 400, 256, /*trained=*/false);
  WriteTokens("sub/b.bin", 1000, 300, 256, /*trained=*/false);
  for (const int world : {1, 2}) {
    const std::vector<RankStory> stories = Run(Spec(), {.world = world});
    ExpectEnd(stories, jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
              "datasets: none of the 700 tokens of 2 files is a target in a window of 12 tokens, at least 1 is wanted");
    EXPECT_FALSE(stories[0].started);
    EXPECT_TRUE(Steps().empty());
  }
}

TEST_F(TrainJobTargetsTest, AnEvaluationWithoutATargetIsRefused) {
  WriteTokens("held_out.bin", 5000, 61, 256, /*trained=*/false);
  const std::vector<RankStory> stories = Run(Spec(), {.world = 2});
  ExpectEnd(stories, jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "evaluation: none of the 61 tokens of 1 file is a target in a window of 12 tokens");
  EXPECT_FALSE(stories[0].started);
}

TEST_F(TrainJobTargetsTest, AStepWithoutATargetChangesNothing) {
  const jobs::JobSpec spec = SparseSpec();
  std::set<int64_t> alone;
  for (const int world : {1, 2}) {
    const std::vector<RankStory> stories = Run(spec, {.world = world, .note_interval = absl::ZeroDuration()});
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    const std::set<int64_t> empty = Empty(stories[0]);
    if (world == 1) alone = empty;
    EXPECT_EQ(empty, alone);
    EXPECT_GT(empty.size(), 1u);
    EXPECT_LT(empty.size(), 11u);
    for (int64_t step = 2; step <= spec.steps; ++step) {
      EXPECT_EQ(Parameters(step) == Parameters(step - 1), empty.contains(step)) << step << " of " << world << " ranks";
    }
    for (const StepProgress& progress : stories[0].steps) {
      EXPECT_EQ(progress.report.skipped, empty.contains(progress.step)) << progress.step;
      EXPECT_EQ(progress.skipped_steps, std::distance(empty.begin(), empty.upper_bound(progress.step)));
    }
    EXPECT_THAT(stories[0].notes, Contains(HasSubstr(absl::StrCat(
                                      "step ", *empty.begin(), " is skipped: none of its tokens is a target (1 of "))));
    ForgetJob();
  }
}

// AdamW's count goes on as if nothing had been between.
TEST_F(TrainJobTargetsTest, WhoGoesOnBehindASkippedStepHasTheSameBits) {
  const jobs::JobSpec spec = SparseSpec();
  const auto whole = Undisturbed(spec, 2);
  EXPECT_THAT(whole.at("trainer_state.json"), HasSubstr("\"skipped_steps\": "));
  for (int64_t stop = 1; stop < spec.steps; ++stop) {
    AttemptOptions options = {.world = 2};
    options.on_step = [stop](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == stop) job->Stop(jobs::StopKind::kSave);
    };
    EXPECT_EQ(Run(spec, options)[0].end.outcome, jobs::TrainOutcome::kStopped);
    const std::vector<RankStory> stories = Run(spec, {.world = 2, .attempt = 2});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_TRUE(FilesOfStep(spec.steps) == whole) << "stopped after step " << stop;
    ForgetJob();
  }
}

}  // namespace
}  // namespace switchyard::train
