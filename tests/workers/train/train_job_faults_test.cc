// Faults of a job, and how another attempt continues: disks, memory, locks, damage, losses that are not finite, and
// errors of specs.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "scheduler/jobs/trainer_limits.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TrainJobFaultsTest : public JobFixture {
 protected:
  void ExpectBad(const jobs::JobSpec& spec, absl::StatusCode code, const std::string& message, int world = 2) {
    SCOPED_TRACE(message);
    const std::vector<RankStory> stories = Run(spec, {.world = world});
    ExpectEnd(stories, jobs::TrainOutcome::kFailed, code, message);
    EXPECT_FALSE(stories[0].started);
  }
};

// The second save finds the disk full on one rank: the attempt is lost, the first save stays, and when there is room
// again the job ends with the bits that it would have had.
TEST_F(TrainJobFaultsTest, AFullDiskLosesNothing) {
  const auto expected = Undisturbed(Spec(), 2);
  const auto full = [](const std::string& path) -> absl::Status {
    if (!absl::StartsWith(path, "step-00000008.")) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(path, ": No space left on device"));
  };
  const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files,
                        int rank) -> std::unique_ptr<checkpoint::FileSystem> {
    if (rank == 0) return files;
    return std::make_unique<HookedFileSystem>(std::move(files), full);
  };
  const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .attempt = 1, .wrap_files = wrap});
  ExpectEnd(stories, jobs::TrainOutcome::kLost, absl::StatusCode::kResourceExhausted,
            "rank 1: model-00002-of-00002.safetensors: step-00000008.tmp-1/model-00002-of-00002.safetensors: No space");
  EXPECT_THAT(Steps(), testing::Contains("step-00000004"));
  const std::vector<RankStory> resumed = Run(Spec(), {.world = 2, .attempt = 2});
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  EXPECT_EQ(resumed[0].start_step, 4);
  EXPECT_THAT(Steps(), ElementsAre("step-00000008", "step-00000012")) << "nothing unfinished stays";
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

// A disk that takes as long as two steps: they are trained meanwhile.
TEST_F(TrainJobFaultsTest, StepsDoNotWaitForASlowDisk) {
  absl::Mutex mu;
  int64_t steps = 0;
  std::atomic<bool> waited_in_vain = false;
  const auto slow = [&](const std::string& path) -> absl::Status {
    if (!absl::StartsWith(path, "step-00000004.")) return absl::OkStatus();
    absl::MutexLock lock(&mu);
    const auto passed = [&] { return steps >= 6; };
    if (!mu.AwaitWithTimeout(absl::Condition(&passed), absl::Minutes(1))) waited_in_vain = true;
    return absl::OkStatus();
  };
  const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files, int) {
    return std::make_unique<HookedFileSystem>(std::move(files), slow);
  };
  const auto count = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) {
    absl::MutexLock lock(&mu);
    steps = progress.step;
  };
  const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .on_step = count, .wrap_files = wrap});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_FALSE(waited_in_vain);
  EXPECT_EQ(stories[0].saved.size(), 3u);
}

// No room for a copy on one rank: all wait until the files are written, and the result is the same.
TEST_F(TrainJobFaultsTest, WithoutMemoryForACopyStepsWait) {
  const auto expected = Undisturbed(Spec(), 2);
  for (const bool room : {true, false}) {
    std::atomic<int> asked = 0;
    std::atomic<int64_t> steps = 0, steps_meanwhile = 0;
    std::atomic<bool> slept = false;
    const auto slow = [&](const std::string& path) -> absl::Status {
      if (!absl::StartsWith(path, "step-00000004.") || slept.exchange(true)) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(500));
      steps_meanwhile = steps - 4;
      return absl::OkStatus();
    };
    const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files, int) {
      return std::make_unique<HookedFileSystem>(std::move(files), slow);
    };
    const auto count = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) { steps = progress.step; };
    // First each rank reads the memory twice: to find the ranks that share it, and to check that the training fits.
    const auto available = [&] { return room || asked++ != 4 ? int64_t{1} << 40 : int64_t{1000}; };
    const std::vector<RankStory> stories =
        Run(Spec(), {.world = 2, .available_memory = available, .on_step = count, .wrap_files = wrap});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_TRUE(FilesOfStep(12) == expected);
    EXPECT_TRUE(slept);
    EXPECT_EQ(steps_meanwhile > 0, room) << steps_meanwhile;
    ForgetJob();
  }
}

TEST_F(TrainJobFaultsTest, WhoeverHoldsTheFolderIsNotDisturbed) {
  const std::unique_ptr<checkpoint::FileSystem> files = *OpenJobFolder(root_.path() + "/checkpoints", "job");
  const auto holder = checkpoint::CheckpointWriter::Open(files.get(), {.attempt = 3, .holder = "attempt 3 of job job"});
  ASSERT_TRUE(holder.ok()) << holder.status();
  ExpectEnd(Run(Spec(), {.world = 2, .attempt = 4}), jobs::TrainOutcome::kLost, absl::StatusCode::kFailedPrecondition,
            "LOCK: locked by attempt 3 of job job");
}

TEST_F(TrainJobFaultsTest, AnAttemptThatIsOverSavesNothing) {
  ASSERT_EQ(Run(Spec(), {.world = 1, .attempt = 5})[0].end.outcome, jobs::TrainOutcome::kFinished);
  ExpectEnd(Run(Spec(), {.world = 1, .attempt = 4}), jobs::TrainOutcome::kLost, absl::StatusCode::kFailedPrecondition,
            "attempt 4 is over: step-00000012 is of attempt 5");
}

TEST_F(TrainJobFaultsTest, ALossThatIsNotFiniteFails) {
  jobs::JobSpec spec = Spec();
  spec.optimizer.schedule.peak = jobs::kMaxLearningRate;
  spec.optimizer.schedule.warmup_steps = 0;
  spec.optimizer.clip_norm = 0;
  // A weight that overflows: fp32's largest number is about 3.4e38.
  spec.base_checkpoint.clear();
  spec.architecture = "model";
  spec.optimizer.weight_decay = 9;
  spec.steps = 1000;
  const std::vector<RankStory> stories = Run(spec, {.world = 1});
  ExpectEnd(stories, jobs::TrainOutcome::kFailed, absl::StatusCode::kDataLoss, "loss is not finite");
  EXPECT_FALSE(stories[0].steps.empty());
}

TEST_F(TrainJobFaultsTest, NoCheckpointThatIsWholeFails) {
  ASSERT_EQ(Run(Spec(), {.world = 1, .attempt = 1})[0].end.outcome, jobs::TrainOutcome::kFinished);
  for (const char* step : {"step-00000008", "step-00000012"}) {
    std::filesystem::resize_file(JobPath(absl::StrCat(step, "/optimizer-rank00000.safetensors")), 1000);
  }
  const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .attempt = 2});
  ExpectEnd(stories, jobs::TrainOutcome::kFailed, absl::StatusCode::kDataLoss, "no checkpoint is whole");
}

// A short failure of a disk costs no steps; a checkpoint that cannot be read at all is rejected.
TEST_F(TrainJobFaultsTest, ACheckpointThatCannotBeReadIsLookedAtAgain) {
  ASSERT_EQ(Run(Spec(), {.world = 2, .attempt = 1})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const auto expected = FilesOfStep(12);
  int64_t attempt = 1;
  for (const char* file : {"step-00000012/optimizer", "step-00000012/MANIFEST", "LATEST", "step-00000012/optimizer"}) {
    const bool for_good = attempt == 4;
    std::atomic<int> left = for_good ? std::numeric_limits<int>::max() : 2;
    const auto bad = [&](const std::string& path) -> absl::Status {
      if (!absl::StartsWith(path, file) || left <= 0) return absl::OkStatus();
      --left;
      return absl::UnavailableError(absl::StrCat(path, ": read at byte 0: Input/output error"));
    };
    const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files, int) {
      return std::make_unique<HookedFileSystem>(std::move(files), nullptr, bad);
    };
    const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .attempt = ++attempt, .wrap_files = wrap});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_EQ(stories[0].start_step, for_good ? 8 : 12) << file;
    EXPECT_THAT(stories[0].notes, testing::Contains(HasSubstr("looks again for a checkpoint: ")));
    ASSERT_EQ(stories[0].warnings.size(), for_good ? 1u : 0u) << file;
    if (for_good) {
      EXPECT_THAT(stories[0].warnings[0], HasSubstr("Input/output error"));
    }
    EXPECT_TRUE(FilesOfStep(12) == expected);
  }
}

TEST_F(TrainJobFaultsTest, AnotherJobDoesNotGoOn) {
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 2) job->Stop(jobs::StopKind::kSave);
  };
  ASSERT_EQ(Run(Spec(), {.world = 1, .on_step = stop})[0].end.outcome, jobs::TrainOutcome::kStopped);
  jobs::JobSpec spec = Spec();
  spec.steps = 20;
  spec.sequence_length = 10;
  ExpectBad(
      spec, absl::StatusCode::kFailedPrecondition,
      "step-00000002: the checkpoint is of another job than this: sequence_length: was 12, is 10; steps: was 12, is "
      "20");
  WriteTokens("a.bin", 1, 400);
  ExpectBad(Spec(), absl::StatusCode::kFailedPrecondition, "datasets[0]: was a.bin, 400 tokens, ");
}

TEST_F(TrainJobFaultsTest, BadSpecsAreSaidBeforeAnythingStarts) {
  const auto with = [this](const std::function<void(jobs::JobSpec*)>& change) {
    jobs::JobSpec spec = Spec();
    change(&spec);
    return spec;
  };
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectBad(with([](jobs::JobSpec* s) { s->base_checkpoint = "../model"; }), kInvalid,
            "path must be under the checkpoint root");
  ExpectBad(with([](jobs::JobSpec* s) { s->base_checkpoint = "nobody"; }), absl::StatusCode::kNotFound,
            "base_checkpoint: \"nobody\": not in the checkpoint root");
  ExpectBad(with([](jobs::JobSpec* s) { s->sequence_length = 641; }), kInvalid,
            "sequence_length: 641, the context of model is 640");
  ExpectBad(Spec(), kInvalid, "batch_sequences: 8 cannot be dealt out to 3 workers", 3);
  ExpectBad(
      with([](jobs::JobSpec* s) {
        s->batch_sequences = 9;
        s->micro_batch_sequences = 0;
      }),
      kInvalid,
      "workers: 9, but a layer of model has 8 experts, and each worker needs at least one of them; at most 8 workers",
      9);
  ExpectBad(with([](jobs::JobSpec* s) { s->steps = 0; }), kInvalid, "steps: 0 is outside [1, ");
  std::filesystem::create_directory_symlink("/etc", root_.path() + "/checkpoints/out");
  ExpectBad(with([](jobs::JobSpec* s) { s->base_checkpoint = "out"; }), kInvalid, "a link leads out of it");
}

TEST_F(TrainJobFaultsTest, BadDataIsSaidBeforeAnythingStarts) {
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  WriteTokens("wide.bin", 0, 400, 1000);
  data_ = {{false, "wide.bin"}};
  ExpectBad(Spec(), kInvalid, "wide.bin: is made with a vocabulary of 1000 tokens, the model has 256");
  WriteTokens("short.bin", 0, 12);
  data_ = {{false, "short.bin"}};
  ExpectBad(Spec(), kInvalid, "data: 1 files of 12 tokens hold no window of 12 and its last target");
  data_ = {{false, "missing.bin"}};
  ExpectEnd(Run(Spec(), {.world = 2}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kNotFound,
            "datasets: \"missing.bin\": not in the dataset root");
  std::string bytes = ReadAll(DataPath("a.bin"));
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  root_.Write("data/damaged.bin", bytes);
  data_ = {{false, "a.bin"}};
  evaluation_ = {{false, "damaged.bin"}};
  ExpectBad(Spec(), absl::StatusCode::kDataLoss, "rank 0: evaluation: damaged.bin: damaged");
  evaluation_ = {};
  data_ = {{true, "packed.bin"}};
  ExpectEnd(Run(Spec(), {.world = 2}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kNotFound,
            "datasets: \"job/packed.bin\": not in the checkpoint root");
  std::filesystem::copy_file(DataPath("a.bin"), JobPath("packed.bin"));
  EXPECT_EQ(Run(Spec(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
}

TEST_F(TrainJobFaultsTest, MemoryThatDoesNotSufficeIsSaidBeforeAnythingIsTaken) {
  const std::vector<RankStory> stories = Run(Spec(), {.available_memory = [] { return int64_t{12345}; }});
  ExpectEnd(stories, jobs::TrainOutcome::kFailed, absl::StatusCode::kResourceExhausted,
            "the worker has 12345 bytes available");
  EXPECT_THAT(std::string(stories[0].end.status.message()), HasSubstr("training needs at least "));
}

}  // namespace
}  // namespace switchyard::train
