// Evaluation sets with losses of their own; rules by evaluations: the best checkpoint, and an early end.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TrainJobEvaluationTest : public JobFixture {
 protected:
  TrainJobEvaluationTest() {
    WriteTokens("other.bin", 9000, 97);
    WriteTokens("more.bin", 700, 40);
  }
  // Two sets: held_out.bin with more.bin, and other.bin.
  jobs::JobSpec WithSets() {
    evaluation_ = {{false, "held_out.bin", 0}, {false, "more.bin", 0}, {false, "other.bin", 1}};
    jobs::JobSpec spec = Spec();
    spec.evaluation = {"held_out.bin", "other.bin", "more.bin"};
    spec.evaluation_names = {"held", "other", "held"};
    spec.evaluate_every_steps = 3;
    return spec;
  }
  // A job whose losses rise after its first evaluations, on every instruction set: the rate becomes far too high.
  jobs::JobSpec Worsening() const {
    jobs::JobSpec spec = Spec();
    spec.steps = 20;
    spec.evaluate_every_steps = 2;
    spec.optimizer.schedule.shape = jobs::LrShape::kConstant;
    spec.optimizer.schedule.warmup_steps = 20;
    spec.optimizer.schedule.peak = 3;
    spec.checkpoints.every_steps = 5;
    spec.checkpoints.keep_last = 1;
    return spec;
  }
  static std::vector<EvaluationSeen> Evaluations(const std::vector<RankStory>& stories) {
    return stories[0].evaluations;
  }
};

class TrainJobSetsTest : public TrainJobEvaluationTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainJobSetsTest, testing::Values(1, 2), testing::PrintToStringParamName());

// Each set is as if it were evaluated alone; the total is the mean over all tokens.
TEST_P(TrainJobSetsTest, ASetHasTheLossThatItHasAlone) {
  const int world = GetParam();
  jobs::JobSpec spec = WithSets();
  const std::vector<EvaluationSeen> seen = Evaluations(Run(spec, {.world = world}));
  ASSERT_EQ(seen.size(), 4u);
  ForgetJob();
  spec.evaluation_names.clear();
  spec.evaluation = {"held_out.bin", "more.bin"};
  evaluation_ = {{false, "held_out.bin"}, {false, "more.bin"}};
  const std::vector<EvaluationSeen> held = Evaluations(Run(spec, {.world = world}));
  ForgetJob();
  spec.evaluation = {"other.bin"};
  evaluation_ = {{false, "other.bin"}};
  const std::vector<EvaluationSeen> other = Evaluations(Run(spec, {.world = world}));
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(seen[i].sets.size(), 2u);
    EXPECT_EQ(seen[i].sets[0], (jobs::SetResult{"held", held[i].loss, held[i].tokens}));
    EXPECT_EQ(seen[i].sets[1], (jobs::SetResult{"other", other[i].loss, other[i].tokens}));
    EXPECT_EQ(held[i].tokens, 60 + 36);
    EXPECT_EQ(other[i].tokens, 96);
    EXPECT_EQ(seen[i].tokens, 192);
    EXPECT_NEAR(seen[i].loss, (96 * held[i].loss + 96 * other[i].loss) / 192, 1e-12);
    EXPECT_TRUE(held[i].sets.empty()) << "a spec without names has none";
  }
}

TEST_F(TrainJobEvaluationTest, SetsDoNotDependOnTheNumberOfRanks) {
  jobs::JobSpec spec = WithSets();
  spec.dtype = jobs::TrainDType::kF64;
  spec.micro_batch_sequences = 0;
  const std::vector<EvaluationSeen> alone = Evaluations(Run(spec, {.world = 1}));
  for (const int world : {2, 4}) {
    ForgetJob();
    const std::vector<EvaluationSeen> seen = Evaluations(Run(spec, {.world = world}));
    ASSERT_EQ(seen.size(), alone.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].sets.size(), 2u);
      for (size_t set = 0; set < 2; ++set) {
        EXPECT_NEAR(seen[i].sets[set].loss, alone[i].sets[set].loss, 1e-10);
        EXPECT_EQ(seen[i].sets[set].tokens, alone[i].sets[set].tokens);
      }
    }
  }
}

TEST_F(TrainJobEvaluationTest, ASetWithoutATargetIsNamed) {
  const jobs::JobSpec spec = WithSets();
  WriteTokens("other.bin", 0, 97, 256, /*trained=*/false);
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "evaluation set other: none of the 97 tokens of 1 file is a target");
}

// Evaluations lead to the same checkpoints and decisions wherever an attempt is interrupted.
TEST_F(TrainJobEvaluationTest, TheBestCheckpointStays) {
  jobs::JobSpec spec = Worsening();
  const std::vector<EvaluationSeen> plain = Evaluations(Run(spec, {.world = 2}));
  ASSERT_EQ(plain.size(), 10u);
  EXPECT_THAT(Steps(), ElementsAre("step-00000020"));
  size_t best = 0;
  for (size_t i = 1; i < plain.size(); ++i) {
    if (plain[i].loss < plain[best].loss) best = i;
    EXPECT_EQ(plain[i].best_step, plain[best].step);
  }
  const int64_t best_step = plain[best].step;
  std::string losses;
  for (const EvaluationSeen& each : plain) absl::StrAppend(&losses, " ", each.loss);
  SCOPED_TRACE(losses);
  ASSERT_GT(best_step, 2);
  ASSERT_LT(best_step, 15) << "the test wants losses that rise";
  const auto last = FilesOfStep(20);
  ForgetJob();
  spec.checkpoints.keep_best = true;
  const std::vector<RankStory> kept = Run(spec, {.world = 2});
  EXPECT_EQ(Evaluations(kept), plain);
  EXPECT_THAT(Steps(), ElementsAre(checkpoint::StepFolder(best_step), "step-00000020"));
  EXPECT_TRUE(FilesOfStep(20) == last) << "the rule changes no bit";
  const auto files = FilesOfStep(best_step);
  for (const int64_t at : {1, 2, 4, 5, 7, 10, 11, 18, 19}) {
    SCOPED_TRACE(at);
    ForgetJob();
    const auto tear = [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == at) comm->Abort("torn down by the test");
    };
    EXPECT_EQ(Run(spec, {.world = 2, .attempt = 1, .on_step = tear})[0].end.outcome, jobs::TrainOutcome::kLost);
    const std::vector<RankStory> resumed = Run(spec, {.world = 2, .attempt = 2});
    ASSERT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
    EXPECT_EQ(resumed[0].evaluations.back(), plain.back());
    EXPECT_THAT(Steps(), ElementsAre(checkpoint::StepFolder(best_step), "step-00000020"));
    EXPECT_TRUE(FilesOfStep(20) == last);
    EXPECT_TRUE(FilesOfStep(best_step) == files);
  }
}

TEST_F(TrainJobEvaluationTest, EndsEarlyAtTheSameStepWhateverHappens) {
  jobs::JobSpec spec = Worsening();
  spec.checkpoints.keep_best = true;
  const std::vector<EvaluationSeen> plain = Evaluations(Run(spec, {.world = 2}));
  ForgetJob();
  spec.early_stop.patience = 3;
  // By a reading of the rule of its own.
  int64_t end = 0, best_step = 0;
  double best = 1e9;
  for (int stale = 0; const EvaluationSeen& each : plain) {
    stale = each.loss < best ? 0 : stale + 1;
    if (each.loss < best) best_step = each.step;
    best = std::min(best, each.loss);
    if (end == 0 && stale == 3) end = each.step;
    if (end != 0) break;
  }
  ASSERT_GT(end, 0);
  ASSERT_LT(end, 20);
  const std::string reason =
      absl::StrCat("stopped early at step ", end, ": 3 evaluations in a row were no improvement; the best has loss ");
  std::map<std::string, std::string> files;
  for (const int64_t at : {int64_t{0}, int64_t{3}, best_step, best_step + 1, end - 1, end}) {
    SCOPED_TRACE(at);
    if (at > 0) {
      const auto tear = [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
        if (progress.step == at) comm->Abort("torn down by the test");
      };
      EXPECT_EQ(Run(spec, {.world = 2, .attempt = 1, .on_step = tear})[0].end.outcome, jobs::TrainOutcome::kLost);
    }
    const std::vector<RankStory> stories = Run(spec, {.world = 2, .attempt = 2});
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      EXPECT_THAT(story.end.note, testing::StartsWith(reason));
      EXPECT_THAT(story.end.note, HasSubstr(absl::StrCat("of step ", best_step)));
    }
    EXPECT_EQ(stories[0].evaluations.back().step, end);
    EXPECT_EQ(stories[0].saved.back().step, end) << "with a checkpoint";
    EXPECT_THAT(Steps(), ElementsAre(checkpoint::StepFolder(best_step), checkpoint::StepFolder(end)));
    if (at == 0) files = FilesOfStep(end);
    EXPECT_TRUE(FilesOfStep(end) == files);
    // Its server was killed before it had the end: another attempt ends at once, likewise.
    const std::vector<RankStory> again = Run(spec, {.world = 2, .attempt = 3});
    EXPECT_TRUE(again[0].steps.empty());
    EXPECT_EQ(again[0].end, stories[0].end);
    ForgetJob();
  }
}

TEST_F(TrainJobEvaluationTest, AnImprovementMayHaveALeastSize) {
  jobs::JobSpec spec = Spec();  // its losses fall, slowly
  spec.evaluate_every_steps = 2;
  const std::vector<EvaluationSeen> falling = Evaluations(Run(spec, {.world = 1}));
  for (size_t i = 1; i < falling.size(); ++i) ASSERT_LT(falling[i].loss, falling[i - 1].loss);
  ForgetJob();
  spec.early_stop = {.patience = 2, .min_improvement = 100};
  const std::vector<RankStory> stories = Run(spec, {.world = 1});
  EXPECT_EQ(stories[0].steps.size(), 6u);
  EXPECT_THAT(
      stories[0].end.note,
      testing::StartsWith("stopped early at step 6: 2 evaluations in a row were no improvement by more than 100;"));
  EXPECT_THAT(stories[0].end.note, HasSubstr("of step 6"));
  ForgetJob();
  spec.early_stop.min_improvement = 0;
  const std::vector<RankStory> whole = Run(spec, {.world = 1});
  EXPECT_EQ(whole[0].steps.size(), 12u);
  EXPECT_EQ(whole[0].end.note, "");
}

// A request to stop is obeyed between two evaluations as anywhere.
TEST_F(TrainJobEvaluationTest, AStopAtAnEvaluationLeavesItToTheNextAttempt) {
  jobs::JobSpec spec = Worsening();
  spec.checkpoints.keep_best = true;
  const std::vector<EvaluationSeen> plain = Evaluations(Run(spec, {.world = 2}));
  const auto last = FilesOfStep(20);
  ForgetJob();
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 4) job->Stop(jobs::StopKind::kSave);
  };
  std::vector<EvaluationSeen> seen = Evaluations(Run(spec, {.world = 2, .attempt = 1, .on_step = stop}));
  EXPECT_EQ(seen.size(), 1u);
  for (const EvaluationSeen& each : Evaluations(Run(spec, {.world = 2, .attempt = 2}))) seen.push_back(each);
  EXPECT_EQ(seen, plain);
  EXPECT_TRUE(FilesOfStep(20) == last);
}

// The parent's best is in the parent's folder alone.
TEST_F(TrainJobEvaluationTest, AForkBeginsARecordOfItsOwn) {
  jobs::JobSpec spec = Worsening();
  spec.checkpoints.keep_last = 99;
  ASSERT_EQ(Run(spec, {.world = 1, .attempt = 1})[0].end.outcome, jobs::TrainOutcome::kFinished);
  for (const std::string& step : Steps()) {
    if (step != "step-00000010") std::filesystem::remove_all(JobPath(step));
  }
  std::filesystem::remove(JobPath("LATEST"));
  const std::vector<RankStory> fork =
      Run(spec, {.world = 1, .attempt = 2, .origin = jobs::ForkOrigin{.job = "parent", .step = 10, .attempts = 1}});
  ASSERT_EQ(fork[0].end.outcome, jobs::TrainOutcome::kFinished) << fork[0].end.status;
  ASSERT_EQ(fork[0].evaluations.size(), 6u);
  EXPECT_EQ(fork[0].evaluations[0].best_step, 10);
}

}  // namespace
}  // namespace switchyard::train
