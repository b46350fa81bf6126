// Waits of a job, stops meanwhile and notes about long work: files that change and come back, disks that cannot be read
// for a moment, the folder's lock, memory that ranks share.
#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/train/job/job_context.h"

namespace switchyard::train {
namespace {

using testing::Contains;
using testing::HasSubstr;

class TrainJobBlocksTest : public JobFixture {
 protected:
  static std::function<void(TrainJob*, comm::Communicator*, const StepProgress&)> AtStep(int64_t step,
                                                                                         std::function<void()> act) {
    return [step, act = std::move(act)](TrainJob*, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == step) act();
    };
  }
};

// The data is cut off, changed or gone under a job that runs: it waits, with a checkpoint of what was trained, and goes
// on to the bits that it would have had when the data is back.
TEST_F(TrainJobBlocksTest, DataThatChangesIsWaitedFor) {
  const auto expected = Undisturbed(Spec(), 2);
  const std::string path = DataPath("a.bin"), kept = DataPath("kept");
  const auto cut = [&] { std::filesystem::resize_file(path, 100); };
  const auto touch = [&] { std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now()); };
  const auto remove = [&] { std::filesystem::remove(path); };
  for (const std::function<void()>& change : std::vector<std::function<void()>>{cut, touch, remove}) {
    std::filesystem::copy_file(path, kept);
    const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .on_step = AtStep(5, change)});
    ExpectEnd(stories, jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
              "changed while it was read");
    ASSERT_FALSE(stories[0].saved.empty());
    EXPECT_GE(stories[0].saved.back().step, 5) << "what was trained is kept";
    std::filesystem::rename(kept, path);
    const std::vector<RankStory> resumed = Run(Spec(), {.world = 2, .attempt = 2});
    EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
    EXPECT_EQ(resumed[0].start_step, stories[0].saved.back().step);
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

TEST_F(TrainJobBlocksTest, EvaluationDataThatChangesIsWaitedFor) {
  jobs::JobSpec spec = Spec();
  spec.evaluate_every_steps = 3;
  const auto cut = [&] { std::filesystem::resize_file(DataPath("held_out.bin"), 100); };
  ExpectEnd(Run(spec, {.world = 2, .on_step = AtStep(3, cut)}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition, "held_out.bin: changed while it was read");
  EXPECT_THAT(Steps(), Contains("step-00000003"));
}

// A later attempt finds other data than the first had: put back, it goes on.
TEST_F(TrainJobBlocksTest, OtherDataAtAnotherAttemptIsWaitedFor) {
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 2) job->Stop(jobs::StopKind::kSave);
  };
  ASSERT_EQ(Run(Spec(), {.world = 1, .on_step = stop})[0].end.outcome, jobs::TrainOutcome::kStopped);
  const std::string path = DataPath("a.bin"), kept = DataPath("kept");
  std::filesystem::rename(path, kept);
  WriteTokens("a.bin", 1, 400);
  ExpectEnd(Run(Spec(), {.world = 2, .attempt = 2}), jobs::TrainOutcome::kBlocked,
            absl::StatusCode::kFailedPrecondition, "datasets[0]: was a.bin, 400 tokens, ");
  std::string bytes = ReadAll(kept);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  root_.Write("data/a.bin", bytes);
  ExpectEnd(Run(Spec(), {.world = 2, .attempt = 3}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kDataLoss,
            "a.bin: damaged");
  std::filesystem::resize_file(path, 300);
  ExpectEnd(Run(Spec(), {.world = 2, .attempt = 4}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kInvalidArgument,
            "a.bin: ");
  std::filesystem::rename(kept, path);
  EXPECT_EQ(Run(Spec(), {.world = 1, .attempt = 5})[0].end.outcome, jobs::TrainOutcome::kFinished);
}

// A disk that cannot be read for a moment loses an attempt, not the job.
TEST_F(TrainJobBlocksTest, ACheckpointThatCannotBeReadIsTriedAgain) {
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 2) job->Stop(jobs::StopKind::kSave);
  };
  ASSERT_EQ(Run(Spec(), {.world = 1, .on_step = stop})[0].end.outcome, jobs::TrainOutcome::kStopped);
  // Looking for a checkpoint reads it block by block, before Restore does.
  const auto size =
      static_cast<int64_t>(std::filesystem::file_size(JobPath("step-00000002/optimizer-rank00000.safetensors")));
  const int64_t blocks = (size + checkpoint::kSummedBlockBytes - 1) / checkpoint::kSummedBlockBytes;
  int64_t attempt = 1;
  for (const absl::Status& error : {absl::UnavailableError("Input/output error"), absl::DataLossError("ends early")}) {
    for (const int64_t reads : {int64_t{0}, blocks}) {
      if (reads == 0 && absl::IsDataLoss(error)) continue;  // that is damage
      std::atomic<int64_t> seen = 0;
      const auto fails = [&](const std::string& path) -> absl::Status {
        if (!absl::StrContains(path, "optimizer-")) return absl::OkStatus();
        return seen++ < reads ? absl::OkStatus() : error;
      };
      const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files, int) {
        return std::make_unique<HookedFileSystem>(std::move(files), nullptr, fails);
      };
      ExpectEnd(Run(Spec(), {.world = 1, .attempt = ++attempt, .wrap_files = wrap}), jobs::TrainOutcome::kLost,
                error.code(), std::string(error.message()));
    }
  }
  EXPECT_EQ(Run(Spec(), {.world = 1, .attempt = ++attempt})[0].start_step, 2);
}

// An attempt that is thought to be over commits once more before it lets the folder go: the next one goes on from that.
TEST_F(TrainJobBlocksTest, WhatAnEarlierAttemptStillSavesIsGoneOnFrom) {
  const auto stop_at = [](int64_t step) {
    return [step](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == step) job->Stop(jobs::StopKind::kSave);
    };
  };
  ASSERT_EQ(Run(Spec(), {.world = 1, .attempt = 1, .on_step = stop_at(2)})[0].end.outcome,
            jobs::TrainOutcome::kStopped);
  const std::string earlier = root_.path() + "/earlier", later = root_.path() + "/later";
  constexpr auto kAll = std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy(JobPath(), earlier, kAll);
  ASSERT_EQ(Run(Spec(), {.world = 1, .attempt = 1, .on_step = stop_at(3)})[0].end.outcome,
            jobs::TrainOutcome::kStopped);
  std::filesystem::copy(JobPath(), later, kAll);
  ForgetJob();
  std::filesystem::copy(earlier, JobPath(), kAll);

  const std::unique_ptr<checkpoint::FileSystem> files = *OpenJobFolder(root_.path() + "/checkpoints", "job");
  absl::StatusOr<std::unique_ptr<checkpoint::File>> lock =
      checkpoint::LockCheckpoints(files.get(), "the first attempt");
  ASSERT_TRUE(lock.ok()) << lock.status();
  std::thread first([&] {
    absl::SleepFor(absl::Milliseconds(500));
    std::filesystem::copy(later + "/step-00000003", JobPath("step-00000003"), kAll);
    std::filesystem::copy(later + "/LATEST", JobPath("LATEST"), kAll);
    lock->reset();
  });
  const std::vector<RankStory> stories =
      Run(Spec(), {.world = 2, .attempt = 2, .lock_patience = absl::Minutes(1), .on_step = stop_at(5)});
  first.join();
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kStopped) << stories[0].end.status;
  EXPECT_EQ(stories[0].start_step, 3);
}

TEST_F(TrainJobBlocksTest, RanksShareTheMemoryThatTheyTakeFrom) {
  using Pools = std::vector<MemoryPool>;
  const auto ends = [&](const std::function<Pools(int)>& pools, int64_t promised = 0) {
    const std::vector<RankStory> stories =
        Run(Spec(), {.world = 2,
                     .promised_memory = [=] { return promised; },
                     .memory = [=](int rank) { return MachineMemory{.pools = pools(rank)}; }});
    ForgetJob();
    return stories[0].end.outcome == jobs::TrainOutcome::kFinished;
  };
  const auto alone = [](int64_t bytes) {
    return [bytes](int rank) { return Pools{{.name = absl::StrCat("machine ", rank), .available_bytes = bytes}}; };
  };
  const auto together = [](int64_t bytes) {
    return [bytes](int) { return Pools{{.name = "machine", .available_bytes = bytes}}; };
  };
  int64_t enough = 1 << 12;  // for one rank, to a factor of 1.2
  while (!ends(alone(enough))) enough += enough / 5;
  EXPECT_FALSE(ends(together(enough)));
  EXPECT_FALSE(ends(together(enough * 3 / 2)));
  EXPECT_TRUE(ends(together(2 * enough)));
  EXPECT_TRUE(ends([=](int rank) { return Pools{{.name = rank == 0 ? "" : "machine", .available_bytes = enough}}; }));
  // Each has promised as much again, for the cache of what it serves.
  EXPECT_FALSE(ends(together(3 * enough), enough));
  EXPECT_TRUE(ends(together(4 * enough), enough));
  // In containers with limits of their own.
  const auto contained = [enough](int64_t bytes) {
    return [enough, bytes](int rank) {
      return Pools{{.name = "machine", .available_bytes = bytes},
                   {.name = absl::StrCat("container ", rank), .available_bytes = enough}};
    };
  };
  EXPECT_FALSE(ends(contained(enough * 3 / 2)));
  EXPECT_TRUE(ends(contained(2 * enough)));
}

// A wait for the disk can be stopped.
TEST_F(TrainJobBlocksTest, AStopWithoutACheckpointDoesNotWaitForTheDisk) {
  evaluation_ = {};
  for (const bool room : {true, false}) {
    absl::Mutex mu;
    bool over = false, in_vain = false;
    std::atomic<TrainJob*> leader = nullptr;
    const auto stuck = [&](const std::string& path) -> absl::Status {
      if (!absl::StartsWith(path, "step-00000004.")) return absl::OkStatus();
      leader.load()->Stop(jobs::StopKind::kNow);
      absl::MutexLock lock(&mu);
      if (!mu.AwaitWithTimeout(absl::Condition(&over), absl::Seconds(30))) in_vain = true;
      return absl::OkStatus();
    };
    const auto wrap = [&](std::unique_ptr<checkpoint::FileSystem> files,
                          int rank) -> std::unique_ptr<checkpoint::FileSystem> {
      if (rank == 0) return files;
      return std::make_unique<HookedFileSystem>(std::move(files), stuck);
    };
    const auto keep = [&](TrainJob* job, int rank) {
      if (rank == 0) leader = job;
    };
    const auto after = [&](int) {
      absl::MutexLock lock(&mu);
      over = true;
    };
    jobs::JobSpec spec = Spec();
    spec.steps = 4;
    std::atomic<int> asked = 0;
    const auto available = [&] { return room || asked++ < 4 ? int64_t{1} << 40 : int64_t{1000}; };
    const std::vector<RankStory> stories =
        Run(spec, {.world = 2, .available_memory = available, .before = keep, .after = after, .wrap_files = wrap});
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped) << story.end.status;
    }
    EXPECT_FALSE(in_vain);
    EXPECT_THAT(Steps(), testing::Not(Contains("step-00000004")));
    ForgetJob();
  }
}

// An interrupted evaluation is not reported, and is repeated.
TEST_F(TrainJobBlocksTest, AStopDoesNotWaitForAnEvaluation) {
  jobs::JobSpec spec = Spec();
  spec.evaluate_every_steps = 4;
  const std::vector<EvaluationSeen> expected = Run(spec, {.world = 2})[0].evaluations;
  ASSERT_EQ(expected.size(), 3u);
  for (const jobs::StopKind kind : {jobs::StopKind::kSave, jobs::StopKind::kNow}) {
    ForgetJob();
    const auto stop = [kind](TrainJob* job, const std::string& text) {
      if (absl::StartsWith(text, "evaluation after step 8: 4 of ")) job->Stop(kind);
    };
    const std::vector<RankStory> stories =
        Run(spec, {.world = 2, .note_interval = absl::ZeroDuration(), .on_note = stop});
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kStopped) << story.end.status;
    }
    EXPECT_THAT(stories[0].evaluations, testing::ElementsAre(expected[0]));
    EXPECT_EQ(stories[0].steps.back().step, 8);
    if (kind == jobs::StopKind::kNow) continue;
    const RankStory resumed = Run(spec, {.world = 2, .attempt = 2})[0];
    EXPECT_EQ(resumed.start_step, 8);
    EXPECT_THAT(resumed.evaluations, testing::ElementsAre(expected[1], expected[2]));
  }
}

// All long work reports its progress.
TEST_F(TrainJobBlocksTest, WhatTakesLongIsReported) {
  const auto reported = [](const std::vector<RankStory>& stories, const std::string& what) {
    EXPECT_THAT(stories[0].notes, Contains(HasSubstr(what)));
    EXPECT_TRUE(stories[1].notes.empty()) << "only rank 0 reports";
  };
  const auto stop = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 2) job->Stop(jobs::StopKind::kSave);
  };
  std::vector<RankStory> stories = Run(Spec(), {.world = 2, .note_interval = absl::ZeroDuration(), .on_step = stop});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kStopped) << stories[0].end.status;
  reported(stories, "checks a.bin: ");
  reported(stories, "loads model: ");
  reported(stories, "saves step 2: ");
  stories = Run(Spec(), {.world = 2, .attempt = 2, .note_interval = absl::ZeroDuration(), .on_step = stop});
  reported(stories, "checks checkpoints: ");
  reported(stories, "reads step-00000002: ");
  ForgetJob();
  jobs::JobSpec spec = Spec();
  spec.architecture = std::exchange(spec.base_checkpoint, "");
  stories = Run(spec, {.world = 2, .note_interval = absl::ZeroDuration(), .on_step = stop});
  reported(stories, "draws weights: ");
}

}  // namespace
}  // namespace switchyard::train
