// Jobs whose sequences are whole documents, whose datasets have weights, or which are bounded by epochs: the same on
// any number of ranks and after any restart.
#include <cmath>
#include <map>
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

class TrainJobWholeDocumentsTest : public JobFixture {
 protected:
  TrainJobWholeDocumentsTest() {
    WriteTokens("a.bin", 0, 400, 256, /*trained=*/true, {0, 3, 4, 17, 30, 60, 66, 75, 80, 91, 100, 101, 110, 118, 250});
    WriteTokens("sub/b.bin", 1000, 300, 256, /*trained=*/true, {0, 7, 50, 61, 99, 111, 119, 177, 250, 277});
    WriteTokens("held_out.bin", 5000, 67, 256, /*trained=*/true, {0, 5, 21, 40});
  }

  jobs::JobSpec Packed() const {
    jobs::JobSpec spec = Spec();
    spec.document_mask = true;
    spec.packing = jobs::WindowPacking::kBestFit;
    return spec;
  }
  jobs::JobSpec Weighted() const {
    jobs::JobSpec spec = Packed();
    spec.dataset_weights = {1, 2.5};
    return spec;
  }
  // Runs the job, which is stopped after this step with a checkpoint, or whose group breaks once the checkpoint of this
  // step is there; then runs it on.
  std::map<std::string, std::string> Interrupted(const jobs::JobSpec& spec, int world, int64_t at, bool breaks) {
    AttemptOptions options = {.world = world};
    options.on_step = [at, breaks](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == at && !breaks) job->Stop(jobs::StopKind::kSave);
    };
    options.on_saved = [at, breaks](TrainJob*, comm::Communicator* comm, const SavedStep& saved) {
      if (saved.step == at && breaks) comm->Abort("a fault of this test");
    };
    const jobs::TrainOutcome first = Run(spec, options)[0].end.outcome;
    EXPECT_EQ(first, breaks ? jobs::TrainOutcome::kLost : jobs::TrainOutcome::kStopped);
    const std::vector<RankStory> resumed = Run(spec, {.world = world, .attempt = 2});
    EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
    EXPECT_GT(resumed[0].start_step, 0);
    std::map<std::string, std::string> files = FilesOfStep(12);
    ForgetJob();
    return files;
  }
};

TEST_F(TrainJobWholeDocumentsTest, AJobThatGoesOnHasTheSameBits) {
  for (const jobs::JobSpec& spec : {Packed(), Weighted()}) {
    for (const int world : {1, 2}) {
      const auto whole = Undisturbed(spec, world);
      EXPECT_TRUE(Interrupted(spec, world, 1, /*breaks=*/false) == whole) << world;
      EXPECT_TRUE(Interrupted(spec, world, 7, /*breaks=*/false) == whole) << world;
      EXPECT_TRUE(Interrupted(spec, world, 4, /*breaks=*/true) == whole) << world;
    }
  }
}

TEST_F(TrainJobWholeDocumentsTest, RanksAgreeAndSayWhatIsPadding) {
  jobs::JobSpec spec = Packed();
  spec.dtype = jobs::TrainDType::kF64;
  spec.micro_batch_sequences = 0;  // one for the step, as the balance loss is over a micro-batch
  std::vector<RankStory> stories;
  for (const int world : {1, 2, 4}) {
    stories.push_back(Run(spec, {.world = world})[0]);
    ASSERT_EQ(stories.back().end.outcome, jobs::TrainOutcome::kFinished) << stories.back().end.status;
    ForgetJob();
  }
  const RankStory& one = stories[0];
  double padding = 0;
  for (const RankStory& story : stories) {
    ASSERT_EQ(story.steps.size(), 12u);
    for (size_t i = 0; i < story.steps.size(); ++i) {
      EXPECT_NEAR(story.steps[i].report.loss, one.steps[i].report.loss, 1e-10 * one.steps[i].report.loss);
      EXPECT_EQ(story.steps[i].report.tokens, one.steps[i].report.tokens);
      EXPECT_EQ(story.steps[i].padding, one.steps[i].padding);
      EXPECT_EQ(story.steps[i].total_steps, 12);
      // All but rows of padding are targets here.
      EXPECT_DOUBLE_EQ(one.steps[i].padding, 1 - static_cast<double>(one.steps[i].report.tokens) / (8 * 12));
      padding = std::max(padding, one.steps[i].padding);
    }
    // 700 tokens of 25 documents; those of evaluation too are all there.
    EXPECT_THAT(story.notes,
                Contains(HasSubstr(" sequences of 12 tokens from 25 documents, 9 of them longer and cut; ")));
    ASSERT_EQ(story.evaluations.size(), 1u);
    EXPECT_EQ(story.evaluations[0].tokens, 63);
  }
  EXPECT_GT(padding, 0);
}

// Chunks change the order in which an expert's rows are added; sums in pieces beside them change nothing.
TEST_F(TrainJobWholeDocumentsTest, SumsBesideChunksHaveTheBitsOfSumsBehindBackward) {
  std::vector<std::map<std::string, std::string>> ends;
  for (const int32_t chunks : {1, 3}) {
    jobs::JobSpec spec = Packed();
    spec.communication = {.mode = jobs::CommMode::kArLast,
                          .granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks}};
    ends.push_back(Undisturbed(spec, 2));
    spec.communication.mode = jobs::CommMode::kPreempt;
    spec.communication.piece_bytes = 1024;
    EXPECT_TRUE(Undisturbed(spec, 2) == ends.back()) << chunks << " chunks";
  }
  EXPECT_FALSE(ends[0] == ends[1]);
}

TEST_F(TrainJobWholeDocumentsTest, ACheckpointOfAnotherKindIsRefused) {
  AttemptOptions options;
  options.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 4) job->Stop(jobs::StopKind::kSave);
  };
  EXPECT_EQ(Run(Packed(), options)[0].end.outcome, jobs::TrainOutcome::kStopped);
  jobs::JobSpec before = Packed();
  before.packing = jobs::WindowPacking::kConcatenate;
  EXPECT_THAT(std::string(Run(before, {.attempt = 2})[0].end.status.message()),
              HasSubstr("packing: was best_fit, is not there"));
  EXPECT_THAT(std::string(Run(Weighted(), {.attempt = 3})[0].end.status.message()),
              HasSubstr("dataset_weights: was not there, is 1 2.5"));
}

TEST_F(TrainJobWholeDocumentsTest, EpochsSayHowManyStepsThereAre) {
  jobs::JobSpec spec = Packed();
  const std::vector<RankStory> measured = Run(spec, {});
  int64_t windows = 0;
  for (const std::string& note : measured[0].notes) {
    if (absl::StartsWith(note, "datasets: ")) windows = std::stoll(note.substr(10));
  }
  ASSERT_GT(windows, 0);
  ForgetJob();
  for (const int world : {1, 2}) {
    for (const double epochs : {0.5, 1.0, 2.0}) {
      spec.steps = 0;
      spec.epochs = epochs;
      const auto steps = static_cast<int64_t>(std::ceil(epochs * static_cast<double>(windows) / 8));
      const std::vector<RankStory> stories = Run(spec, {.world = world});
      ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
      ASSERT_EQ(static_cast<int64_t>(stories[0].steps.size()), steps);
      EXPECT_EQ(stories[0].steps[0].total_steps, steps);
      EXPECT_THAT(stories[0].notes,
                  Contains(absl::StrCat(epochs, " epochs of ", windows, " sequences are ", steps, " steps")));
      // As with so many steps.
      const auto files = FilesOfStep(steps);
      EXPECT_FALSE(files.empty());
      ForgetJob();
      jobs::JobSpec same = Packed();
      same.steps = steps;
      EXPECT_EQ(Run(same, {.world = world})[0].end.outcome, jobs::TrainOutcome::kFinished);
      EXPECT_TRUE(FilesOfStep(steps) == files);
      ForgetJob();
    }
  }
  spec.epochs = 0.5;
  spec.optimizer.schedule.warmup_steps = 30;
  ExpectEnd(Run(spec, {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "learning rate: warmup_steps is 30, must be in [0, total_steps]");
}

}  // namespace
}  // namespace switchyard::train
