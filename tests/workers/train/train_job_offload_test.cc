// Jobs with masters and moments of experts in a file: the same losses and the same checkpoints, to the bit.
#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

class TrainJobOffloadTest : public JobFixture {
 protected:
  TrainJobOffloadTest() { std::filesystem::create_directories(Directory()); }
  std::string Directory() const { return root_.path() + "/offload"; }
  jobs::JobSpec Spec(jobs::OffloadPolicy offload) const {
    jobs::JobSpec spec = JobFixture::Spec();
    spec.offload = offload;
    return spec;
  }
  static std::vector<double> Losses(const std::vector<RankStory>& stories) {
    std::vector<double> losses;
    for (const StepProgress& step : stories[0].steps) losses.push_back(step.report.loss);
    return losses;
  }
};

TEST_F(TrainJobOffloadTest, TheSameBits) {
  for (const jobs::TrainDType dtype : {jobs::TrainDType::kF32, jobs::TrainDType::kBf16, jobs::TrainDType::kF64}) {
    for (const int world : {1, 2}) {
      jobs::JobSpec spec = Spec(jobs::OffloadPolicy::kNever);
      spec.dtype = dtype;
      const std::vector<RankStory> in_memory = Run(spec, {.world = world, .offload_dir = Directory()});
      ASSERT_EQ(in_memory[0].end.outcome, jobs::TrainOutcome::kFinished) << in_memory[0].end.status;
      const auto expected = FilesOfStep(12);
      ForgetJob();
      spec.offload = jobs::OffloadPolicy::kAlways;
      int names = 0;
      const auto look = [&](TrainJob*, comm::Communicator*, const StepProgress&) {
        for (const auto& entry : std::filesystem::directory_iterator(Directory())) names += entry.exists();
      };
      const std::vector<RankStory> offloaded =
          Run(spec, {.world = world, .threads = 2, .offload_dir = Directory(), .on_step = look});
      ASSERT_EQ(offloaded[0].end.outcome, jobs::TrainOutcome::kFinished) << offloaded[0].end.status;
      EXPECT_TRUE(FilesOfStep(12) == expected) << world;
      EXPECT_EQ(Losses(offloaded), Losses(in_memory));
      EXPECT_EQ(offloaded[0].evaluations, in_memory[0].evaluations);
      EXPECT_GT(offloaded[0].steps[0].report.offloaded_bytes, 0);
      EXPECT_EQ(in_memory[0].steps[0].report.offloaded_bytes, 0);
      EXPECT_EQ(names, 0) << "nothing is left, whatever ends the process";
      ForgetJob();
    }
  }
}

// An attempt that breaks off goes on to the same bits, whether it is offloaded before, after or both.
TEST_F(TrainJobOffloadTest, GoesOnWhereItWas) {
  const auto expected = Undisturbed(Spec(jobs::OffloadPolicy::kNever), 2);
  const auto breaks = [](TrainJob*, comm::Communicator* comm, const SavedStep&) { comm->Abort("broken by the test"); };
  for (const auto& [first, second] : {std::make_pair(jobs::OffloadPolicy::kAlways, jobs::OffloadPolicy::kAlways),
                                      std::make_pair(jobs::OffloadPolicy::kNever, jobs::OffloadPolicy::kAlways),
                                      std::make_pair(jobs::OffloadPolicy::kAlways, jobs::OffloadPolicy::kNever)}) {
    const auto lost = Run(Spec(first), {.world = 2, .attempt = 1, .offload_dir = Directory(), .on_saved = breaks});
    EXPECT_EQ(lost[0].end.outcome, jobs::TrainOutcome::kLost) << lost[0].end.status;
    const auto stories = Run(Spec(second), {.world = 2, .attempt = 2, .offload_dir = Directory()});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_EQ(stories[0].start_step, 4);
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

// For every call on the file that fails: the attempt is lost, and another one ends as without the fault.
TEST_F(TrainJobOffloadTest, AFileThatFailsLosesTheAttempt) {
  const auto expected = Undisturbed(Spec(jobs::OffloadPolicy::kNever), 2);
  jobs::JobSpec spec = Spec(jobs::OffloadPolicy::kAlways);
  int64_t attempt = 0, lost = 0;
  for (int64_t fails = 0;; fails = fails * 2 + 1) {
    std::atomic<int64_t> calls = 0;
    std::atomic<bool> failed = false;
    const auto open = [&](int rank, int64_t bytes) -> absl::StatusOr<std::unique_ptr<StateFile>> {
      if (rank == 0) return std::make_unique<FakeStateFile>(bytes);
      return std::make_unique<FakeStateFile>(bytes, [&](bool writes, int64_t at) -> absl::Status {
        if (calls++ < fails) return absl::OkStatus();
        failed = true;
        return Lost(absl::ResourceExhaustedError(
            absl::StrCat("offload: ", writes ? "write" : "read", " at byte ", at, ": No space left on device")));
      });
    };
    const std::vector<RankStory> stories =
        Run(spec, {.world = 2, .attempt = ++attempt, .offload_dir = Directory(), .open_offload = open});
    if (!failed) {
      EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
      break;
    }
    ++lost;
    EXPECT_EQ(stories[1].end.outcome, jobs::TrainOutcome::kLost) << stories[1].end.status;
    EXPECT_THAT(std::string(stories[1].end.status.message()), HasSubstr("No space left on device"));
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kLost) << stories[0].end.status;
  }
  EXPECT_GT(lost, 5);
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

TEST_F(TrainJobOffloadTest, AutoOffloadsWhatWouldNotFit) {
  // Of two layers nothing is saved: as many are in memory.
  std::string config = ReadAll(root_.path() + "/checkpoints/model/config.json");
  const std::string layers = "\"num_hidden_layers\": 2";
  ASSERT_NE(config.find(layers), std::string::npos);
  config.replace(config.find(layers), layers.size(), "\"num_hidden_layers\": 6");
  std::filesystem::create_directories(root_.path() + "/checkpoints/deep");
  root_.Write("checkpoints/deep/config.json", config);
  const auto run = [&](jobs::OffloadPolicy offload, int64_t available, const std::string& directory) {
    ForgetJob();
    jobs::JobSpec spec = Spec(offload);
    spec.base_checkpoint.clear();
    spec.architecture = "deep";
    return Run(spec, {.available_memory = [=] { return available; }, .offload_dir = directory})[0];
  };
  // The least that is enough with and without it, to a factor of 1.05.
  const auto least = [&](jobs::OffloadPolicy offload) {
    int64_t bytes = 1 << 16;
    while (run(offload, bytes, Directory()).end.outcome == jobs::TrainOutcome::kFailed) bytes += bytes / 20;
    return bytes;
  };
  const int64_t without = least(jobs::OffloadPolicy::kNever), with = least(jobs::OffloadPolicy::kAlways);
  EXPECT_LT(with, without);
  EXPECT_EQ(run(jobs::OffloadPolicy::kAuto, without, Directory()).steps.at(0).report.offloaded_bytes, 0);
  const RankStory offloads = run(jobs::OffloadPolicy::kAuto, with, Directory());
  EXPECT_EQ(offloads.end.outcome, jobs::TrainOutcome::kFinished) << offloads.end.status;
  EXPECT_GT(offloads.steps.at(0).report.offloaded_bytes, 0);
  EXPECT_THAT(offloads.notes, testing::Contains(HasSubstr("keeps masters and moments of experts")));

  const auto refused = [&](jobs::OffloadPolicy offload, int64_t available, const std::string& directory) {
    const RankStory story = run(offload, available, directory);
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFailed) << story.end.status;
    return std::string(story.end.status.message());
  };
  EXPECT_THAT(refused(jobs::OffloadPolicy::kAuto, with, ""), HasSubstr("has no --train_offload_dir"));
  EXPECT_THAT(refused(jobs::OffloadPolicy::kAuto, with, ""), HasSubstr("training needs at least"));
  EXPECT_THAT(refused(jobs::OffloadPolicy::kNever, with, Directory()), HasSubstr("; offload is never, not auto"));
  EXPECT_THAT(refused(jobs::OffloadPolicy::kAlways, without, ""), HasSubstr("has no --train_offload_dir"));
  EXPECT_THAT(refused(jobs::OffloadPolicy::kAuto, with / 2, Directory()), HasSubstr(" in a file, activations"));
}

// A file for experts would not help.
TEST_F(TrainJobOffloadTest, TooManyRowsAreSaidToBeSo) {
  jobs::JobSpec spec = Spec(jobs::OffloadPolicy::kAuto);
  spec.batch_sequences = spec.micro_batch_sequences = 1 << 14;
  const RankStory story = Run(spec, {.available_memory = [] { return int64_t{64} << 20; }, .offload_dir = ""})[0];
  EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFailed) << story.end.status;
  const std::string message(story.end.status.message());
  EXPECT_THAT(message, testing::StartsWith("training needs at least "));
  EXPECT_THAT(message, HasSubstr("; most are activations: a lower micro_batch_sequences (now 16384) or recompute"));
  EXPECT_THAT(message, testing::Not(HasSubstr("train_offload_dir")));
}

}  // namespace
}  // namespace switchyard::train
