// A job behind a gate, as on a worker that also serves: it waits as long as the gate is shut, wherever that finds it,
// and ends with the bits of one that nothing held up.
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/tensor/work_gate.h"

namespace switchyard {
namespace {

using TrainJobGateTest = JobFixture;

// Opens each rank's gate for moments, now this one's and now that one's.
class Flicker {
 public:
  explicit Flicker(int world) {
    for (int r = 0; r < world; ++r) gates_.push_back(std::make_unique<WorkGate>());
    thread_ = std::thread([this] {
      std::mt19937 random(7);
      while (!done_) {
        WorkGate& gate = *gates_[random() % gates_.size()];
        random() % 2 == 0 ? gate.Shut() : gate.OpenFor(absl::Microseconds(100 + random() % 2000));
        absl::SleepFor(absl::Microseconds(random() % 500));
      }
    });
  }
  ~Flicker() {
    done_ = true;
    thread_.join();
  }
  WorkGate* gate(int rank) { return gates_[static_cast<size_t>(rank)].get(); }

 private:
  std::vector<std::unique_ptr<WorkGate>> gates_;
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
  for (const RankStory& story : stories) EXPECT_EQ(story.end.outcome, TrainOutcome::kFinished) << story.end.status;
  EXPECT_EQ(FilesOfStep(12), expected);
}

TEST_F(TrainJobGateTest, ShutItDoesNothingAndReleasedItComesToItsEnd) {
  WorkGate gate;
  std::atomic<bool> ended{false};
  std::vector<RankStory> stories;
  Communicator* group = nullptr;
  std::atomic<int> steps{0};
  std::thread runner([&] {
    stories = Run(Spec(), {.gate = [&](int) { return &gate; },
                           .on_step =
                               [&](TrainJob*, Communicator* comm, const StepProgress& progress) {
                                 group = comm;
                                 steps = static_cast<int>(progress.step);
                                 if (progress.step == 3) gate.Shut();
                               }});
    ended = true;
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(steps, 0);
  gate.OpenFor(absl::Hours(1));
  while (steps < 3) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(steps, 3);
  EXPECT_FALSE(ended);
  // As a worker does when the attempt is given up.
  group->Abort("given up");
  gate.Release();
  runner.join();
  EXPECT_EQ(stories[0].end.outcome, TrainOutcome::kLost) << stories[0].end.status;
  EXPECT_LE(steps, 4);
}

}  // namespace
}  // namespace switchyard
