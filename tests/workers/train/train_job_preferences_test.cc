// Jobs with preferences: their figures, and that an interrupted job ends with the bits of an undisturbed one.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/train/preference_jobs.h"

namespace switchyard::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

using TrainJobPreferencesTest = PreferenceJobs;

TEST_F(TrainJobPreferencesTest, LearnsAndReportsItsFigures) {
  jobs::JobSpec spec = Preferring();
  spec.steps = 24;
  spec.evaluate_every_steps = 12;
  spec.evaluation_names = {"held"};
  const std::vector<RankStory> stories = Run(spec, {.world = 2});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  const std::vector<StepProgress>& steps = stories[0].steps;
  ASSERT_EQ(steps.size(), 24u);
  ASSERT_TRUE(steps[0].report.preferences.has_value());
  EXPECT_NEAR(steps[0].report.loss, std::log(2), 1e-6);
  EXPECT_NEAR(steps[0].report.preferences->margin, 0, 1e-6);
  EXPECT_GT(steps[0].report.preferences->pairs, 8);
  EXPECT_LT(steps[23].report.loss, 0.6);
  EXPECT_GT(steps[23].report.preferences->margin, 0.2);
  EXPECT_GT(steps[23].report.preferences->accuracy, 0.7);
  const std::vector<EvaluationSeen>& evaluations = stories[0].evaluations;
  ASSERT_EQ(evaluations.size(), 2u);
  ASSERT_EQ(evaluations[1].sets.size(), 1u);
  ASSERT_TRUE(evaluations[1].sets[0].preferences.has_value());
  EXPECT_EQ(evaluations[1].sets[0].preferences->pairs, 10);
  EXPECT_EQ(evaluations[1].sets[0].loss, evaluations[1].loss);
  EXPECT_GT(evaluations[1].sets[0].preferences->accuracy, 0.5);
  EXPECT_LT(evaluations[1].loss, std::log(2));
  EXPECT_EQ(References().size(), 3u);  // of both files and of evaluation
  EXPECT_THAT(stories[0].notes, Contains(HasSubstr(" from 64 pairs, 0 of them longer and left out; ")));
}

TEST_F(TrainJobPreferencesTest, AnInterruptedAttemptEndsWithTheSameBits) {
  jobs::JobSpec bf16 = Preferring();
  bf16.dtype = jobs::TrainDType::kBf16;
  jobs::JobSpec frozen = Preferring();
  frozen.parameters = {{.pattern = "*.experts.*", .frozen = true}};
  frozen.recompute = true;
  for (const jobs::JobSpec& spec : {Preferring(), Adapted(), bf16, frozen}) {
    for (const int world : {1, 2}) {
      const std::map<std::string, std::string> whole = Undisturbed(spec, world);
      EXPECT_EQ(Run(spec, StopsAt(6, world))[0].end.outcome, jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> second = Run(spec, {.world = world, .attempt = 2});
      ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
      EXPECT_EQ(second[0].start_step, 6);
      EXPECT_FALSE(Computed(second[0])) << "the reference is read";
      EXPECT_TRUE(FilesOfStep(12) == whole);
      ForgetJob();
    }
  }
}

// With dense state on all ranks or sharded, and an attempt that goes on from either.
TEST_F(TrainJobPreferencesTest, ShardedDenseStateChangesNoBit) {
  jobs::JobSpec spec = Preferring();
  const std::map<std::string, std::string> whole = TensorsOf(Undisturbed(spec, 2));
  spec.zero = 1;
  EXPECT_TRUE(TensorsOf(Undisturbed(spec, 2)) == whole);
  for (const int32_t first : {0, 1}) {
    spec.zero = first;
    EXPECT_EQ(Run(spec, StopsAt(6, 2))[0].end.outcome, jobs::TrainOutcome::kStopped);
    spec.zero = 1;
    const std::vector<RankStory> second = Run(spec, {.world = 2, .attempt = 2});
    ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_EQ(second[0].start_step, 6);
    EXPECT_TRUE(TensorsOf(FilesOfStep(12)) == whole) << first;
    ForgetJob();
  }
}

// Chunks change the order in which an expert's rows are added; sums in pieces beside them, and hidden rows that are
// computed again, change nothing.
TEST_F(TrainJobPreferencesTest, ChunksAndWeightsOfDatasets) {
  std::vector<std::map<std::string, std::string>> ends;
  for (const int32_t chunks : {1, 3}) {
    SCOPED_TRACE(chunks);
    jobs::JobSpec spec = Preferring();
    spec.dataset_weights = {3, 1};
    spec.communication = {.mode = jobs::CommMode::kArLast,
                          .granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks}};
    ends.push_back(Undisturbed(spec, 2));
    spec.communication.mode = jobs::CommMode::kPreempt;
    spec.communication.piece_bytes = 1024;
    EXPECT_TRUE(Undisturbed(spec, 2) == ends.back());
    spec.restore.hidden = pipeline::HiddenRestore::kRecompute;
    EXPECT_TRUE(Undisturbed(spec, 2) == ends.back());
  }
  EXPECT_FALSE(ends[0] == ends[1]);
}

TEST_F(TrainJobPreferencesTest, LongPairsAreLeftOut) {
  jobs::JobSpec spec = Preferring();
  spec.sequence_length = 8;
  spec.evaluation.clear();
  evaluation_.clear();
  const std::vector<RankStory> some = Run(spec, {});
  ASSERT_EQ(some[0].end.outcome, jobs::TrainOutcome::kFinished) << some[0].end.status;
  EXPECT_THAT(some[0].notes, Contains(AllOf(HasSubstr(" from 64 pairs, "), Not(HasSubstr(", 0 of them longer")))));
  ForgetJob();
  spec.sequence_length = 1;
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: data: none of 64 pairs of answers in 2 files fits into sequence_length 1");
}

TEST_F(TrainJobPreferencesTest, PairsAndJobsFit) {
  jobs::JobSpec spec = Preferring();
  spec.dpo = {};
  ExpectEnd(Run(spec, {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: a.bin: has pairs of answers, which only a job with dpo trains on");
  spec.packing = jobs::WindowPacking::kConcatenate;
  ExpectEnd(Run(spec, {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "a.bin has pairs of answers, which go with packing best_fit alone");
  WriteTokens("sub/b.bin", 0, 300);
  ExpectEnd(Run(Preferring(), {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "a.bin has pairs of answers, sub/b.bin has none; all files or none may");
  WriteTokens("a.bin", 0, 300);
  ExpectEnd(Run(Preferring(), {}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "datasets: a.bin: has no pairs of answers, which a job with dpo wants");
}

TEST_F(TrainJobPreferencesTest, AnEvaluationThatIsTheBestIsKept) {
  jobs::JobSpec spec = Preferring();
  spec.evaluate_every_steps = 2;
  spec.checkpoints.keep_best = true;
  spec.early_stop = {.patience = 2, .min_improvement = 10};
  const std::vector<RankStory> stories = Run(spec, {});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_THAT(stories[0].end.note, HasSubstr("stopped early at step 6"));
}

}  // namespace
}  // namespace switchyard::train
