// A job with a gate, as on a worker that also serves: its computation waits while the gate is shut, and it ends with
// the bits of a job that never waited.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/tensor/yield_point.h"

namespace switchyard::train {
namespace {

using TrainJobGateTest = JobFixture;

// Opens each rank's gate for moments, now this one's and now that one's.
class Flicker {
 public:
  explicit Flicker(int world) {
    for (int r = 0; r < world; ++r) gates_.push_back(std::make_unique<YieldPoint>());
    thread_ = std::thread([this] {
      std::mt19937 random(7);
      while (!done_) {
        YieldPoint& gate = *gates_[random() % gates_.size()];
        random() % 2 == 0 ? gate.Shut() : gate.OpenFor(absl::Microseconds(100 + random() % 2000));
        absl::SleepFor(absl::Microseconds(random() % 500));
      }
    });
  }
  ~Flicker() {
    done_ = true;
    thread_.join();
  }
  YieldPoint* gate(int rank) { return gates_[static_cast<size_t>(rank)].get(); }

 private:
  std::vector<std::unique_ptr<YieldPoint>> gates_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class TrainJobGateRanksTest : public TrainJobGateTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainJobGateRanksTest, testing::Values(1, 2), testing::PrintToStringParamName());

TEST_P(TrainJobGateRanksTest, InSlicesItHasTheSameBits) {
  const int world = GetParam();
  const auto expected = Undisturbed(Spec(), world);
  Flicker flicker(world);
  const std::vector<RankStory> stories =
      Run(Spec(), {.world = world, .threads = 2, .gate = [&](int rank) { return flicker.gate(rank); }});
  for (const RankStory& story : stories)
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
  EXPECT_EQ(FilesOfStep(12), expected);
}

// Beside threads that pass no gate: those of sums, of offloaded state, of a checkpoint that is written.
TEST_F(TrainJobGateTest, ItsOtherThreadsWaitForIt) {
  for (const jobs::CommMode mode :
       {jobs::CommMode::kFair, jobs::CommMode::kPriorityTicketed, jobs::CommMode::kPipelining}) {
    jobs::JobSpec spec = Spec();
    spec.communication = {.mode = mode, .piece_bytes = 4096};
    spec.offload = jobs::OffloadPolicy::kNever;
    const auto expected = Undisturbed(spec, 2);
    spec.offload = jobs::OffloadPolicy::kAlways;
    Flicker flicker(2);
    const std::vector<RankStory> stories = Run(
        spec,
        {.world = 2, .threads = 2, .gate = [&](int rank) { return flicker.gate(rank); }, .offload_dir = root_.path()});
    for (const RankStory& story : stories)
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
    EXPECT_EQ(FilesOfStep(12), expected) << jobs::CommModeName(mode);
    ForgetJob();
  }
}

TEST_F(TrainJobGateTest, ShutItDoesNothingAndReleasedItComesToItsEnd) {
  absl::Notification shut;
  YieldPoint gate;
  std::atomic<bool> ended{false};
  std::vector<RankStory> stories;
  comm::Communicator* group = nullptr;
  std::atomic<int> steps{0};
  std::thread runner([&] {
    stories = Run(Spec(), {.gate = [&](int) { return &gate; },
                           .on_step =
                               [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
                                 group = comm;
                                 steps = static_cast<int>(progress.step);
                                 if (progress.step != 3) return;
                                 gate.Shut();
                                 shut.Notify();
                               }});
    ended = true;
  });
  gate.AwaitStanding(1);
  EXPECT_EQ(steps, 0);
  gate.OpenFor(absl::Hours(1));
  shut.WaitForNotification();
  gate.AwaitStanding(1);
  gate.AwaitStill();
  EXPECT_EQ(steps, 3);
  EXPECT_FALSE(ended);
  // As a worker does when the attempt is given up.
  group->Abort("given up");
  gate.Release();
  runner.join();
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kLost) << stories[0].end.status;
  EXPECT_EQ(steps, 3) << "it does not do the rest of the step that it was in";
}

}  // namespace
}  // namespace switchyard::train
