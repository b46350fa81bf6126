// A job's description of its ranks in manifests, and the warnings of jobs that continue from them.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/ops/core/isa.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;

constexpr char kStep[] = "step-00000004";

class TrainJobSavedByTest : public JobFixture {
 protected:
  // Leaves step 4 alone, so that as many are left to be done.
  void SaveStepFour(const jobs::JobSpec& spec, const AttemptOptions& options) {
    AttemptOptions stopping = options;
    stopping.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == 4) job->Stop(jobs::StopKind::kSave);
    };
    ASSERT_EQ(Run(spec, stopping)[0].end.outcome, jobs::TrainOutcome::kStopped);
  }

  checkpoint::Manifest SavedManifest() const {
    const absl::StatusOr<checkpoint::Manifest> manifest =
        checkpoint::DecodeManifest(ReadAll(JobPath(absl::StrCat(kStep, "/", checkpoint::kManifestName))));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? *manifest : checkpoint::Manifest();
  }

  // Replaces the manifest, as if another program had saved it.
  void WriteManifest(const checkpoint::Manifest& manifest) {
    const std::string text = checkpoint::EncodeManifest(manifest);
    root_.Write(absl::StrCat("checkpoints/job/", kStep, "/", checkpoint::kManifestName), text);
    root_.Write(absl::StrCat("checkpoints/job/", checkpoint::kLatestName),
                checkpoint::EncodeLatest({kStep, checkpoint::Sha256Hex(text)}));
  }

  // Of the attempt that goes on from what was saved so.
  std::vector<std::string> WarningsAfter(const std::function<void(checkpoint::SavedBy*)>& change) {
    SaveStepFour(Spec(), {.world = 2, .attempt = 1});
    checkpoint::Manifest manifest = SavedManifest();
    change(&manifest.saved_by);
    WriteManifest(manifest);
    const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .attempt = 2});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_EQ(stories[0].start_step, 4);
    EXPECT_EQ(stories[1].warnings, stories[0].warnings);
    ForgetJob();
    return stories[0].warnings;
  }
};

constexpr char kBegin[] =
    "step-00000004 was saved by other means, so what follows need not be to the bit what it would have been:";

TEST_F(TrainJobSavedByTest, ManifestsSayWhoSaved) {
  jobs::JobSpec spec = Spec();
  SaveStepFour(spec, {.world = 2, .threads = 3, .attempt = 5});
  const checkpoint::Manifest manifest = SavedManifest();
  EXPECT_EQ(manifest.step, 4);
  EXPECT_EQ(manifest.attempt, 5);
  EXPECT_EQ(manifest.saved_by.world, 2);
  EXPECT_EQ(manifest.saved_by.threads, 3);
  EXPECT_EQ(manifest.saved_by.isa, ops::IsaName(ops::CurrentIsa()));
  EXPECT_EQ(manifest.saved_by.software, "test");
  EXPECT_EQ(manifest.saved_by.data_type, "fp32");
  ForgetJob();
  spec.dtype = jobs::TrainDType::kF64;
  SaveStepFour(spec, {.world = 1});
  EXPECT_EQ(SavedManifest().saved_by.world, 1);
  EXPECT_EQ(SavedManifest().saved_by.data_type, "fp64");
}

TEST_F(TrainJobSavedByTest, TheSameMeansAreNoWarning) {
  EXPECT_THAT(WarningsAfter([](checkpoint::SavedBy*) {}), ElementsAre());
  EXPECT_THAT(WarningsAfter([](checkpoint::SavedBy* saved_by) { saved_by->threads = 77; }), ElementsAre())
      << "threads change no bits";
}

TEST_F(TrainJobSavedByTest, AnotherInstructionSetVersionOrNumberOfRanksIsNamed) {
  const std::string isa = ops::IsaName(ops::CurrentIsa());
  const auto other_isa = [](checkpoint::SavedBy* saved_by) { saved_by->isa = "abacus"; };
  EXPECT_THAT(WarningsAfter(other_isa), ElementsAre(absl::StrCat(kBegin, " instruction set abacus, now ", isa)));
  const auto other_version = [](checkpoint::SavedBy* saved_by) { saved_by->software = "0.1 of old"; };
  EXPECT_THAT(WarningsAfter(other_version), ElementsAre(absl::StrCat(kBegin, " version 0.1 of old, now test")));
  const auto all = [](checkpoint::SavedBy* saved_by) {
    *saved_by = {.world = 8, .threads = 1, .isa = "abacus", .software = "old", .data_type = saved_by->data_type};
  };
  EXPECT_THAT(WarningsAfter(all), ElementsAre(absl::StrCat(kBegin, " 8 ranks, now 2; instruction set abacus, now ", isa,
                                                           "; version old, now test")));
}

}  // namespace
}  // namespace switchyard::train
