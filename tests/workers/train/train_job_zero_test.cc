// Jobs with sharded dense state (`zero`, ZeRO-1): the same losses and the same tensors in checkpoints, to the bit, and
// attempts that go on from each other with and without it.
#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/workers/train/job_fixture.h"

namespace switchyard::train {
namespace {

using Files = std::map<std::string, std::string>;

class TrainJobZeroTest : public JobFixture {
 protected:
  TrainJobZeroTest() { std::filesystem::create_directories(Directory()); }
  std::string Directory() const { return root_.path() + "/offload"; }
  jobs::JobSpec Spec(int32_t zero) const {
    jobs::JobSpec spec = JobFixture::Spec();
    spec.zero = zero;
    return spec;
  }
  static std::vector<double> Losses(const std::vector<RankStory>& stories) {
    std::vector<double> losses;
    for (const StepProgress& step : stories[0].steps) losses.push_back(step.report.loss);
    return losses;
  }
  // The tensors of an undisturbed job's last step.
  Files Expected(const jobs::JobSpec& spec, int world) { return TensorsOf(Undisturbed(spec, world)); }
};

TEST_F(TrainJobZeroTest, TheSameBits) {
  for (const jobs::TrainDType dtype : {jobs::TrainDType::kF32, jobs::TrainDType::kBf16, jobs::TrainDType::kF64}) {
    for (const int world : {1, 2, 4}) {
      jobs::JobSpec spec = Spec(0);
      spec.dtype = dtype;
      const std::vector<RankStory> whole = Run(spec, {.world = world});
      ASSERT_EQ(whole[0].end.outcome, jobs::TrainOutcome::kFinished) << whole[0].end.status;
      const Files expected = TensorsOf(FilesOfStep(12));
      ForgetJob();
      spec.zero = 1;
      const std::vector<RankStory> sharded = Run(spec, {.world = world, .threads = 2});
      ASSERT_EQ(sharded[0].end.outcome, jobs::TrainOutcome::kFinished) << sharded[0].end.status;
      EXPECT_TRUE(TensorsOf(FilesOfStep(12)) == expected) << world;
      EXPECT_EQ(Losses(sharded), Losses(whole));
      EXPECT_EQ(sharded[0].evaluations, whole[0].evaluations);
      ForgetJob();
    }
  }
}

// Weights that are drawn anew are those of one rank.
TEST_F(TrainJobZeroTest, DrawsTheSameWeights) {
  jobs::JobSpec spec = Spec(0);
  spec.base_checkpoint.clear();
  spec.architecture = "model";
  const Files expected = Expected(spec, 4);
  spec.zero = 1;
  EXPECT_TRUE(Expected(spec, 4) == expected);
}

// Each rank writes a part of the dense tensors.
TEST_F(TrainJobZeroTest, AllRanksWrite) {
  Run(Spec(1), {.world = 4});
  const Files files = FilesOfStep(12);
  size_t least = SIZE_MAX, most = 0;
  for (int r = 0; r < 4; ++r) {
    const size_t bytes = files.at("optimizer-rank0000" + std::to_string(r) + ".safetensors").size();
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  EXPECT_LT(most, 2 * least);
}

// An attempt that breaks off goes on to the same bits, with dense state sharded before, after or both; on another
// number of ranks, too.
TEST_F(TrainJobZeroTest, GoesOnWhereItWas) {
  const Files expected = Expected(Spec(0), 2);
  const auto breaks = [](TrainJob*, comm::Communicator* comm, const SavedStep&) { comm->Abort("broken by the test"); };
  for (const auto& [first, second] : {std::pair(1, 1), std::pair(0, 1), std::pair(1, 0)}) {
    const auto lost = Run(Spec(first), {.world = 2, .attempt = 1, .on_saved = breaks});
    EXPECT_EQ(lost[0].end.outcome, jobs::TrainOutcome::kLost) << lost[0].end.status;
    const auto stories = Run(Spec(second), {.world = 2, .attempt = 2});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_EQ(stories[0].start_step, 4);
    EXPECT_TRUE(TensorsOf(FilesOfStep(12)) == expected) << first << " " << second;
    ForgetJob();
  }
  std::vector<Files> ends;
  for (const int32_t zero : {0, 1}) {
    Run(Spec(zero), {.world = 2, .attempt = 1, .on_saved = breaks});
    const auto stories = Run(Spec(zero), {.world = 4, .attempt = 2});
    EXPECT_EQ(stories[0].start_step, 4);
    ends.push_back(TensorsOf(FilesOfStep(12)));
    ForgetJob();
  }
  EXPECT_TRUE(ends[0] == ends[1]);
}

// Without memory for a copy, or with experts in a file, ranks exchange what they write while training waits.
TEST_F(TrainJobZeroTest, SavesWithoutACopy) {
  const Files expected = Expected(Spec(0), 4);
  jobs::JobSpec spec = Spec(1);
  const Files copied = Undisturbed(spec, 4);
  spec.offload = jobs::OffloadPolicy::kAlways;
  const auto offloaded = Run(spec, {.world = 4, .offload_dir = Directory()});
  EXPECT_EQ(offloaded[0].end.outcome, jobs::TrainOutcome::kFinished) << offloaded[0].end.status;
  EXPECT_TRUE(TensorsOf(FilesOfStep(12)) == expected);
  EXPECT_TRUE(FilesOfStep(12) == copied) << "the same files";
  ForgetJob();
  // One rank has no room when it saves.
  std::vector<std::atomic<bool>> started(4);
  const auto memory = [&](int rank) {
    const int64_t bytes = rank == 2 && started[2] ? 1000 : int64_t{1} << 40;
    return MachineMemory{.total_bytes = bytes, .pools = {{.name = "", .available_bytes = bytes}}};
  };
  const auto step = [&](TrainJob*, comm::Communicator*, const StepProgress&) { started[2] = true; };
  const auto short_of = Run(Spec(1), {.world = 4, .memory = memory, .on_step = step});
  EXPECT_EQ(short_of[0].end.outcome, jobs::TrainOutcome::kFinished) << short_of[0].end.status;
  EXPECT_TRUE(FilesOfStep(12) == copied);
}

// A stop while ranks exchange what they write ends all at once.
TEST_F(TrainJobZeroTest, StopsWhileItSaves) {
  jobs::JobSpec spec = Spec(1);
  spec.offload = jobs::OffloadPolicy::kAlways;
  const absl::Time begin = absl::Now();
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 4) job->Stop(jobs::StopKind::kNow);
  };
  const auto stories = Run(spec, {.world = 4, .offload_dir = Directory(), .on_step = stop});
  for (const RankStory& story : stories) EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped) << story.end.status;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50));
}

// A stop while the checkpoint of the best evaluation is written without a copy: no step follows, which would change
// what is read, and the next attempt ends with the bits of an undisturbed job.
TEST_F(TrainJobZeroTest, StopsWhileItSavesTheBest) {
  for (const int32_t zero : {0, 1}) {
    jobs::JobSpec spec = Spec(zero);
    spec.offload = jobs::OffloadPolicy::kAlways;
    spec.evaluate_every_steps = 3;
    spec.checkpoints.keep_best = true;
    AttemptOptions options = {.world = 4, .note_interval = absl::ZeroDuration(), .offload_dir = Directory()};
    options.attempt = 2;
    const auto undisturbed = Run(spec, options);
    ASSERT_EQ(undisturbed[0].end.outcome, jobs::TrainOutcome::kFinished) << undisturbed[0].end.status;
    ASSERT_EQ(undisturbed[0].evaluations.size(), 4u);
    const Files expected = TensorsOf(FilesOfStep(12));
    ForgetJob();

    // At the evaluation's last note no control point is left before those of the save.
    std::string last;
    for (const std::string& note : undisturbed[0].notes) {
      if (absl::StartsWith(note, "evaluation after step 3: ")) last = note;
    }
    ASSERT_NE(last, "");
    options.attempt = 1;
    options.on_note = [&](TrainJob* job, const std::string& note) {
      if (note == last) job->Stop(jobs::StopKind::kNow);
    };
    const auto stopped = Run(spec, options);
    for (const RankStory& story : stopped) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped) << story.end.status;
    }
    EXPECT_EQ(stopped[0].evaluations.size(), 1u) << "the stop comes after it";
    EXPECT_EQ(stopped[0].steps.size(), 3u);
    options.attempt = 2;
    options.on_note = {};
    const auto second = Run(spec, options);
    EXPECT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_TRUE(TensorsOf(FilesOfStep(12)) == expected);
    ForgetJob();
  }
}

// Experts that the ranks do not divide: the first ones have one more.
TEST_F(TrainJobZeroTest, ExpertsNeedNotDivide) {
  for (const int32_t zero : {0, 1}) {
    jobs::JobSpec spec = Spec(zero);
    spec.dtype = jobs::TrainDType::kF64;
    spec.batch_sequences = 6;
    spec.micro_batch_sequences = 0;  // balance losses are of a micro-batch of all ranks
    const std::vector<double> alone = Losses(Run(spec, {.world = 1}));
    ForgetJob();
    const auto three = Run(spec, {.world = 3});  // of 8 experts
    ASSERT_EQ(three[0].end.outcome, jobs::TrainOutcome::kFinished) << three[0].end.status;
    const std::vector<double> losses = Losses(three);
    ASSERT_EQ(losses.size(), alone.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], alone[i], 1e-10 * alone[i]);
    ForgetJob();
  }
}

}  // namespace
}  // namespace switchyard::train
