// The jobs' thread and its inbox, and the threads that pack text.
#include "server/jobs/job_loop.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/jobs/manager_fixture.h"

namespace switchyard::server {
namespace {

class StuckPreparer final : public DataPreparer {
 public:
  absl::StatusOr<PackedData> Pack(const PackRequest&, absl::FunctionRef<bool(int64_t, int64_t)> progress) override {
    ++running;
    while (progress(0, 1)) absl::SleepFor(absl::Milliseconds(1));
    return absl::CancelledError("no longer wanted");
  }
  std::atomic<int> running = 0;
};

// A loop with a job that is running on one worker.
class JobLoopTest : public testing::Test {
 protected:
  JobLoopTest() {
    JobManager::Options options;
    options.trainers = {.configured = 1, .tokens = {.shared = "token", .local = ""}, .silence = absl::Hours(1)};
    JobLoop::Hooks hooks;
    hooks.open_store = hooks.close_store = [](const std::string&) {};
    hooks.kill_worker = [](int, int64_t) {};
    hooks.end_of = [](int, int64_t) { return std::string(); };
    hooks.on_counts = [](const TrainingCounts&) {};
    hooks.checkpoints_of = [](const std::string&) { return std::vector<int64_t>(); };
    hooks.share_serving = [](bool) { return absl::ZeroDuration(); };
    loop_ = std::make_unique<JobLoop>(options, std::make_unique<MemoryJournal>(), &packs_, nullptr, hooks);
    EXPECT_TRUE(loop_->Start().ok());
    fleet::WorkerInfo info;
    info.join_token = "token";
    info.incarnation = "w";
    loop_->OnTrainer(1, trainer_, info);
    jobs::JobSpec spec;
    spec.architecture = "demo";
    spec.datasets = {"a.bin"};
    spec.steps = 1 << 20;
    spec.sequence_length = 8;
    spec.batch_sequences = 4;
    Ask([&](JobManager& manager) { id_ = manager.Submit("", spec)->job->id; });
    while (epoch_ < 0) Ask([&](JobManager&) { epoch_ = trainer_->epoch(); });
    loop_->OnTraining(1, epoch_, TrainingStarted{.step = 0});
  }
  // Runs the task on the loop's thread; blocks.
  void Ask(const std::function<void(JobManager&)>& task) {
    absl::Notification done;
    ASSERT_TRUE(loop_->Post([&](JobManager& manager) {
      task(manager);
      done.Notify();
    }));
    done.WaitForNotification();
  }

  StuckPreparer preparer_;
  PackRunner packs_{&preparer_};
  const std::shared_ptr<FakeTrainer> trainer_ = std::make_shared<FakeTrainer>();
  std::unique_ptr<JobLoop> loop_;
  std::string id_;
  int64_t epoch_ = -1;
};

// Reports to a loop that is held up: they are bounded, the newest arrive in the end, and none that changes a job's
// state is dropped.
TEST_F(JobLoopTest, AnInboxIsBounded) {
  absl::Notification stuck, go_on;
  ASSERT_TRUE(loop_->Post([&](JobManager&) {
    stuck.Notify();
    go_on.WaitForNotification();
  }));
  stuck.WaitForNotification();
  constexpr int64_t kSteps = 20'000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    jobs::TrainProgress progress;
    progress.step = step;
    loop_->OnTraining(1, epoch_, progress);
    loop_->OnTrainerHeartbeat(1);
    if (step % 1000 == 0) loop_->OnTraining(1, epoch_, jobs::SavedCheckpoint{.step = step});
  }
  EXPECT_LE(loop_->num_waiting(), JobLoop::kMostWaiting + kSteps / 1000 + 2);
  go_on.Notify();
  JobPtr job;
  int64_t checkpoints = 0;
  for (int tries = 0; tries < 2; ++tries) {  // the newest reports run after the inbox
    Ask([&](JobManager& manager) {
      job = *manager.Get(id_);
      checkpoints = manager.counts().checkpoints;
    });
  }
  EXPECT_EQ(job->state, jobs::JobState::kRunning);
  EXPECT_EQ(job->progress->step, kSteps);
  EXPECT_EQ(checkpoints, kSteps / 1000);
  EXPECT_EQ(job->checkpoint->step, kSteps);
  loop_->Stop();
}

// Simultaneous calls do not exceed the limit.
TEST(PackRunnerTest, NoMoreThanSoManyStart) {
  StuckPreparer preparer;
  PackRunner packs(&preparer);
  std::atomic<int> started = 0, refused = 0, done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      const bool begins = packs.StartIfFewer(
          "call-", 3, absl::StrCat("call-", i), {}, [](int64_t, int64_t) {},
          [&](const absl::StatusOr<PackedData>&) { ++done; });
      ++(begins ? started : refused);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(started, 3);
  EXPECT_EQ(refused, 13);
  packs.Start(
      "job", {}, [](int64_t, int64_t) {}, [&](const absl::StatusOr<PackedData>&) { ++done; });
  packs.Stop();
  EXPECT_EQ(done, 4);
  EXPECT_EQ(preparer.running, 4) << "another kind of work is not counted";
}

}  // namespace
}  // namespace switchyard::server
