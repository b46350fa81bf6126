// Jobs whose MoE layers restore rows for backward instead of keeping them: the same checkpoints, to the bit.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

using pipeline::HiddenRestore;
using pipeline::InputRestore;
using testing::HasSubstr;

class TrainJobRestoreTest : public JobFixture {
 protected:
  TrainJobRestoreTest() { std::filesystem::create_directories(Directory()); }
  std::string Directory() const { return root_.path() + "/offload"; }
  jobs::JobSpec Spec(const pipeline::RestoreStrategy& restore) const {
    jobs::JobSpec spec = JobFixture::Spec();
    spec.offload = jobs::OffloadPolicy::kNever;
    spec.restore = restore;
    return spec;
  }
};

TEST_F(TrainJobRestoreTest, TheSameBits) {
  for (const int32_t chunks : {1, 3}) {
    jobs::JobSpec spec = Spec({});
    spec.communication.piece_bytes = 1024;
    spec.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = chunks};
    const auto kept = Run(spec, {.world = 2});
    ASSERT_EQ(kept[0].end.outcome, jobs::TrainOutcome::kFinished) << kept[0].end.status;
    EXPECT_EQ(kept[0].steps[0].report.chunks, chunks);
    EXPECT_EQ(kept[0].steps[0].report.saved_bytes, 0);
    const auto expected = FilesOfStep(12);
    ForgetJob();
    for (const pipeline::RestoreStrategy restore :
         {pipeline::RestoreStrategy{InputRestore::kOffload, HiddenRestore::kOffload},
          {InputRestore::kResend, HiddenRestore::kOffload},
          {InputRestore::kOffload, HiddenRestore::kRecompute},
          {InputRestore::kResend, HiddenRestore::kRecompute}}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(restore.input), " ", static_cast<int>(restore.hidden)));
      spec.restore = restore;
      const auto restored = Run(spec, {.world = 2, .offload_dir = Directory()});
      ASSERT_EQ(restored[0].end.outcome, jobs::TrainOutcome::kFinished) << restored[0].end.status;
      EXPECT_TRUE(FilesOfStep(12) == expected);
      EXPECT_EQ(restored[0].evaluations, kept[0].evaluations);
      EXPECT_EQ(restored[0].steps[0].report.saved_bytes > 0, restore.offloads());
      EXPECT_TRUE(std::filesystem::is_empty(Directory())) << "nothing is left, whatever ends the process";
      ForgetJob();
    }
  }
}

TEST_F(TrainJobRestoreTest, WantsADirectoryToOffloadTo) {
  const auto stories = Run(Spec({InputRestore::kKeep, HiddenRestore::kOffload}), {.world = 1});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFailed);
  EXPECT_THAT(std::string(stories[0].end.status.message()), HasSubstr("has no --train_offload_dir for rows"));
}

// A disk that fails is an attempt that is lost, and the next goes on.
TEST_F(TrainJobRestoreTest, ADiskThatFailsEndsTheAttempt) {
  const jobs::JobSpec spec = Spec({InputRestore::kResend, HiddenRestore::kOffload});
  const auto expected = Undisturbed(Spec({}), 1);
  int writes = 0;
  AttemptOptions options = {.world = 1, .attempt = 1};
  options.open_offload = [&](int, int64_t bytes) -> absl::StatusOr<std::unique_ptr<StateFile>> {
    return std::make_unique<FakeStateFile>(bytes, [&](bool is_write, int64_t) {
      return is_write && ++writes == 40 ? Lost(absl::UnavailableError("the test's disk")) : absl::OkStatus();
    });
  };
  const auto lost = Run(spec, options);
  EXPECT_EQ(lost[0].end.outcome, jobs::TrainOutcome::kLost) << lost[0].end.status;
  EXPECT_THAT(std::string(lost[0].end.status.message()), HasSubstr("the test's disk"));
  const auto stories = Run(spec, {.world = 1, .attempt = 2, .offload_dir = Directory()});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

}  // namespace
}  // namespace switchyard::train
