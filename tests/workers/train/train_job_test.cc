// A job from its spec to its end: its reports, its files, and that an interruption anywhere changes no bit.
#include "workers/train/job/train_job.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using TrainJobTest = JobFixture;

class TrainJobRanksTest : public TrainJobTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainJobRanksTest, testing::Values(1, 2), testing::PrintToStringParamName());

TEST_P(TrainJobRanksTest, RunsToItsEnd) {
  const int world = GetParam();
  const std::vector<RankStory> stories = Run(Spec(), {.world = world});
  for (const RankStory& story : stories) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
    EXPECT_TRUE(story.started);
    EXPECT_EQ(story.start_step, 0);
    EXPECT_THAT(story.warnings, testing::IsEmpty());
  }
  const RankStory& first = stories[0];
  ASSERT_EQ(first.steps.size(), 12u);
  for (size_t i = 0; i < first.steps.size(); ++i) {
    const StepProgress& step = first.steps[i];
    EXPECT_EQ(step.step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(step.tokens, step.step * 8 * 12);
    EXPECT_GT(step.tokens_per_second, 0);
    EXPECT_EQ(step.learning_rate,
              jobs::LearningRate({.peak = 2e-3, .warmup_steps = 3, .total_steps = 12}, step.step - 1));
  }
  EXPECT_LT(first.steps.back().report.loss, first.steps.front().report.loss);
  ASSERT_EQ(first.saved.size(), 3u);
  EXPECT_EQ(first.saved[1].step, 8);
  EXPECT_EQ(first.saved[1].folder, "step-00000008");
  EXPECT_GT(first.saved[1].bytes, 0);
  EXPECT_THAT(Steps(), ElementsAre("step-00000008", "step-00000012"));
  EXPECT_EQ(FilesOfStep(12).count("tokenizer.json"), 1u);
  ASSERT_EQ(first.evaluations.size(), 1u);
  EXPECT_EQ(first.evaluations[0].step, 12);
  EXPECT_EQ(first.evaluations[0].tokens, 60);  // five windows
  if (world == 1) return;
  EXPECT_THAT(stories[1].steps, testing::IsEmpty());
  EXPECT_THAT(stories[1].saved, testing::IsEmpty());
}

TEST_P(TrainJobRanksTest, StoppedWithACheckpointAnywhereItEndsWithTheSameBits) {
  const int world = GetParam();
  const auto expected = Undisturbed(Spec(), world);
  for (const int64_t at : {1, 4, 6, 11, 12}) {
    SCOPED_TRACE(at);
    // One rank alone gets the request.
    const auto stop = [&](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == at) job->Stop(jobs::StopKind::kSave);
    };
    const std::vector<RankStory> stopped = Run(Spec(), {.world = world, .attempt = 1, .on_step = stop});
    for (const RankStory& story : stopped) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped);
      EXPECT_TRUE(story.end.status.ok()) << story.end.status;
    }
    EXPECT_EQ(stopped[0].saved.back().step, at);
    const std::vector<RankStory> resumed = Run(Spec(), {.world = world, .attempt = 2});
    for (const RankStory& story : resumed) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      EXPECT_EQ(story.start_step, at);
      EXPECT_THAT(story.warnings, testing::IsEmpty());
    }
    EXPECT_EQ(resumed[0].steps.size(), static_cast<size_t>(12 - at));
    ASSERT_EQ(resumed[0].evaluations.size(), 1u);
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

// With biases of routers that follow the load, and a capacity that binds.
TEST_P(TrainJobRanksTest, GoesOnWithCapacityAndMovedBiasesToTheSameBits) {
  UseModel("gpt2-bias");
  jobs::JobSpec spec = Spec();
  spec.capacity_factor = 0.75;
  spec.balance_bias_rate = 0.01;
  const int world = GetParam();
  const auto expected = Undisturbed(spec, world);
  const auto stop = [&](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
  };
  const std::vector<RankStory> stopped = Run(spec, {.world = world, .attempt = 1, .on_step = stop});
  EXPECT_EQ(stopped[0].end.outcome, jobs::TrainOutcome::kStopped) << stopped[0].end.status;
  for (const StepProgress& step : stopped[0].steps) EXPECT_GT(step.report.dropped_rows, 0);
  const std::vector<RankStory> resumed = Run(spec, {.world = world, .attempt = 2});
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  EXPECT_EQ(resumed[0].start_step, 6);
  EXPECT_TRUE(FilesOfStep(12) == expected);
  ForgetJob();
  spec.balance_bias_rate = 0;
  EXPECT_FALSE(Undisturbed(spec, world) == expected) << "the rate does nothing";
}

// So it may be what the links' speed says, which differs from attempt to attempt.
TEST_F(TrainJobTest, TheSizeOfPiecesChangesNoBit) {
  jobs::JobSpec spec = Spec();
  EXPECT_EQ(spec.communication.piece_bytes, jobs::kPiecesByLink);
  const auto expected = Undisturbed(spec, 2);
  std::map<int64_t, int64_t> launched;  // in the second step; all but sums are as many whatever their pieces
  for (const int64_t bytes : {int64_t{1024}, int64_t{5000}, jobs::kMostPiece}) {
    spec.communication.piece_bytes = bytes;
    const auto count = [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == 1) launched[bytes] -= comm->ledger().num_launched();
      if (progress.step == 2) launched[bytes] += comm->ledger().num_launched();
    };
    const std::vector<RankStory> stories = Run(spec, {.world = 2, .on_step = count});
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_TRUE(FilesOfStep(12) == expected) << bytes;
    ForgetJob();
  }
  EXPECT_GT(launched[1024], launched[5000]);
  EXPECT_GT(launched[5000], launched[jobs::kMostPiece]);
}

// Micro-batches of the same samples drop the same choices on any ranks.
TEST_F(TrainJobTest, WorkersDropTheSame) {
  jobs::JobSpec spec = Spec();
  spec.dtype = jobs::TrainDType::kF64;
  spec.capacity_factor = 1;
  std::vector<StepProgress> alone;
  for (const int world : {1, 2, 4}) {
    spec.micro_batch_sequences = 4 / world;
    const std::vector<RankStory> stories = Run(spec, {.world = world});
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    ForgetJob();
    if (world == 1) alone = stories[0].steps;
    for (size_t i = 0; i < alone.size(); ++i) {
      const StepReport &here = stories[0].steps[i].report, &expected = alone[i].report;
      EXPECT_GT(here.dropped_rows, 0);
      EXPECT_EQ(here.dropped_rows, expected.dropped_rows) << world << " workers, step " << i;
      EXPECT_NEAR(here.loss, expected.loss, 1e-10 * expected.loss) << world << " workers, step " << i;
    }
  }
}

TEST_F(TrainJobTest, ARateForAModelWithoutBiasesFails) {
  jobs::JobSpec spec = Spec();
  spec.balance_bias_rate = 0.01;
  const std::vector<RankStory> stories = Run(spec, {});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFailed);
  EXPECT_THAT(std::string(stories[0].end.status.message()),
              HasSubstr("balance_bias_rate is 0.01, but OlmoeForCausalLM's routers have no bias here"));
}

// Whatever was under way: steps, a save's files, its commit.
TEST_P(TrainJobRanksTest, TornDownAnywhereItGoesOnFromTheLastCheckpoint) {
  const int world = GetParam();
  const auto expected = Undisturbed(Spec(), world);
  for (const int64_t at : {1, 4, 5, 8, 10}) {
    SCOPED_TRACE(at);
    const auto tear = [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == at) comm->Abort("torn down by the test");
    };
    const std::vector<RankStory> torn = Run(Spec(), {.world = world, .attempt = 1, .on_step = tear});
    for (const RankStory& story : torn) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost);
      EXPECT_EQ(story.end.status.code(), absl::StatusCode::kUnavailable) << story.end.status;
    }
    const std::vector<RankStory> resumed = Run(Spec(), {.world = world, .attempt = 2});
    EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
    EXPECT_EQ(resumed[0].start_step % 4, 0);
    EXPECT_LE(resumed[0].start_step, at);
    EXPECT_GE(resumed[0].start_step, ((at - 1) / 4 - 1) * 4) << "a save begins when the one before counts";
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

// Ranks that differ from those that saved: the same training up to rounding, and said to be so.
TEST_F(TrainJobTest, GoesOnOnAnotherNumberOfRanks) {
  jobs::JobSpec spec = Spec();
  spec.dtype = jobs::TrainDType::kF64;
  spec.micro_batch_sequences = 0;  // balance losses are of a micro-batch
  const std::vector<RankStory> whole = Run(spec, {.world = 1});
  ForgetJob();
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
  };
  ASSERT_EQ(Run(spec, {.world = 2, .attempt = 1, .on_step = stop})[0].end.outcome, jobs::TrainOutcome::kStopped);
  const std::vector<RankStory> resumed = Run(spec, {.world = 4, .attempt = 2});
  ASSERT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  EXPECT_EQ(resumed[0].start_step, 6);
  for (const RankStory& story : resumed) {
    ASSERT_EQ(story.warnings.size(), 1u);
    EXPECT_THAT(story.warnings[0], HasSubstr("step-00000006 was saved by other means"));
    EXPECT_THAT(story.warnings[0], HasSubstr("2 ranks, now 4"));
  }
  EXPECT_NEAR(resumed[0].steps.back().report.loss, whole[0].steps.back().report.loss, 1e-10);
  ASSERT_EQ(resumed[0].evaluations.size(), 1u);
  EXPECT_NEAR(resumed[0].evaluations[0].loss, whole[0].evaluations[0].loss, 1e-10);
  EXPECT_EQ(resumed[0].evaluations[0].tokens, whole[0].evaluations[0].tokens);
}

TEST_F(TrainJobTest, PassesOverADamagedCheckpoint) {
  const auto expected = Undisturbed(Spec(), 2);
  ASSERT_EQ(Run(Spec(), {.world = 2, .attempt = 1})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const std::string path = JobPath("step-00000012/optimizer-rank00001.safetensors");
  std::string bytes = ReadAll(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  const std::vector<RankStory> resumed = Run(Spec(), {.world = 2, .attempt = 2});
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  EXPECT_EQ(resumed[0].start_step, 8);
  ASSERT_EQ(resumed[0].warnings.size(), 1u);
  EXPECT_THAT(resumed[0].warnings[0], HasSubstr("a damaged checkpoint was passed over: step-00000012"));
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

TEST_F(TrainJobTest, StopsWithoutACheckpoint) {
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 2) job->Stop(jobs::StopKind::kNow);
    if (progress.step == 2) job->Stop(jobs::StopKind::kSave);  // the greater one wins
  };
  for (const RankStory& story : Run(Spec(), {.world = 2, .on_step = stop})) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped);
    EXPECT_LE(story.steps.size(), 2u);
  }
  EXPECT_THAT(Steps(), testing::IsEmpty());
}

// The stop reaches all ranks from any one: here from a rank that reports nothing.
TEST_F(TrainJobTest, ARankThatIsAskedStopsAll) {
  const auto before = [](TrainJob* job, int rank) {
    if (rank == 1) job->Stop(jobs::StopKind::kSave);
  };
  for (const RankStory& story : Run(Spec(), {.world = 2, .before = before})) {
    EXPECT_TRUE(story.started);
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped);
  }
  EXPECT_THAT(Steps(), testing::IsEmpty()) << "nothing was done that would be worth it";
}

TEST_F(TrainJobTest, EvaluatesWhileItTrainsAndAfterAnInterruption) {
  jobs::JobSpec spec = Spec();
  spec.evaluate_every_steps = 3;
  const std::vector<EvaluationSeen> expected = Run(spec, {.world = 2})[0].evaluations;
  ASSERT_EQ(expected.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(expected[i].step, static_cast<int64_t>(3 * (i + 1)));
    EXPECT_EQ(expected[i].tokens, 60);
  }
  EXPECT_LT(expected[3].loss, expected[0].loss);
  ForgetJob();
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
  };
  std::vector<EvaluationSeen> seen = Run(spec, {.world = 2, .attempt = 1, .on_step = stop})[0].evaluations;
  EXPECT_EQ(seen.size(), 1u) << "that of the step at which it stopped is left to the next attempt";
  const std::vector<RankStory> resumed = Run(spec, {.world = 2, .attempt = 2});
  for (const EvaluationSeen& each : resumed[0].evaluations) seen.push_back(each);
  EXPECT_EQ(seen, expected);
}

TEST_F(TrainJobTest, BeginsAnewFromAnArchitecture) {
  jobs::JobSpec spec = Spec();
  spec.base_checkpoint.clear();
  spec.architecture = "model";
  std::filesystem::remove(root_.path() + "/checkpoints/model/model.safetensors");
  const std::vector<RankStory> one = Run(spec, {.world = 1});
  EXPECT_EQ(one[0].end.outcome, jobs::TrainOutcome::kFinished) << one[0].end.status;
  EXPECT_NEAR(one[0].steps[0].report.loss, std::log(256), 0.1);
  ForgetJob();
  const std::vector<RankStory> two = Run(spec, {.world = 2});
  EXPECT_NEAR(two[0].steps[0].report.loss, one[0].steps[0].report.loss, 1e-5) << "the same weights on any ranks";
  ForgetJob();
  spec.seed = 8;
  EXPECT_NE(Run(spec, {.world = 1})[0].steps[0].report.loss, one[0].steps[0].report.loss);
}

// A job in bf16 leaves bf16 weights, and its folder is a model with which another job begins.
TEST_F(TrainJobTest, LeavesAModel) {
  jobs::JobSpec spec = Spec();
  spec.dtype = jobs::TrainDType::kBf16;
  const std::vector<RankStory> first = Run(spec, {.world = 2});
  ASSERT_EQ(first[0].end.outcome, jobs::TrainOutcome::kFinished) << first[0].end.status;
  const absl::StatusOr<checkpoint::Checkpoint> saved = checkpoint::Checkpoint::Open(JobPath("step-00000012"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->Find("model.embed_tokens.weight").entry->dtype, "BF16");
  std::filesystem::rename(JobPath(), root_.path() + "/checkpoints/other");
  spec.base_checkpoint = "other/step-00000012";
  const std::vector<RankStory> second = Run(spec, {.world = 1});
  ASSERT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
  EXPECT_LT(second[0].steps[0].report.loss, first[0].steps[6].report.loss);
}

}  // namespace
}  // namespace switchyard::train
