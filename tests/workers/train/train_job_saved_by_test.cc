// What a job says of itself in its manifests, and what whoever goes on from them is warned of.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/ops/core/isa.h"
#include "workers/train/job/train_job.h"

namespace switchyard {
namespace {

using testing::ElementsAre;

constexpr char kStep[] = "step-00000004";

class TrainJobSavedByTest : public JobFixture {
 protected:
  // Leaves step 4 alone, so that as many are left to be done.
  void SaveStepFour(const JobSpec& spec, const AttemptOptions& options) {
    AttemptOptions stopping = options;
    stopping.on_step = [](TrainJob* job, Communicator*, const StepProgress& progress) {
      if (progress.step == 4) job->Stop(StopKind::kSave);
    };
    ASSERT_EQ(Run(spec, stopping)[0].end.outcome, TrainOutcome::kStopped);
  }

  Manifest SavedManifest() const {
    const absl::StatusOr<Manifest> manifest = DecodeManifest(ReadAll(JobPath(absl::StrCat(kStep, "/", kManifestName))));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return manifest.ok() ? *manifest : Manifest();
  }

  // As if somebody else had saved it.
  void WriteManifest(const Manifest& manifest) {
    const std::string text = EncodeManifest(manifest);
    root_.Write(absl::StrCat("checkpoints/job/", kStep, "/", kManifestName), text);
    root_.Write(absl::StrCat("checkpoints/job/", kLatestName), EncodeLatest({kStep, Sha256Hex(text)}));
  }

  // Of the attempt that goes on from what was saved so.
  std::vector<std::string> WarningsAfter(const std::function<void(SavedBy*)>& change) {
    SaveStepFour(Spec(), {.world = 2, .attempt = 1});
    Manifest manifest = SavedManifest();
    change(&manifest.saved_by);
    WriteManifest(manifest);
    const std::vector<RankStory> stories = Run(Spec(), {.world = 2, .attempt = 2});
    EXPECT_EQ(stories[0].end.outcome, TrainOutcome::kFinished) << stories[0].end.status;
    EXPECT_EQ(stories[0].start_step, 4);
    EXPECT_EQ(stories[1].warnings, stories[0].warnings);
    ForgetJob();
    return stories[0].warnings;
  }
};

constexpr char kBegin[] =
    "step-00000004 was saved by other means, so what follows need not be to the bit what it would have been:";

TEST_F(TrainJobSavedByTest, ManifestsSayWhoSaved) {
  JobSpec spec = Spec();
  SaveStepFour(spec, {.world = 2, .threads = 3, .attempt = 5});
  const Manifest manifest = SavedManifest();
  EXPECT_EQ(manifest.step, 4);
  EXPECT_EQ(manifest.attempt, 5);
  EXPECT_EQ(manifest.saved_by.world, 2);
  EXPECT_EQ(manifest.saved_by.threads, 3);
  EXPECT_EQ(manifest.saved_by.isa, IsaName(CurrentIsa()));
  EXPECT_EQ(manifest.saved_by.software, "test");
  EXPECT_EQ(manifest.saved_by.data_type, "fp32");
  ForgetJob();
  spec.dtype = TrainDType::kF64;
  SaveStepFour(spec, {.world = 1});
  EXPECT_EQ(SavedManifest().saved_by.world, 1);
  EXPECT_EQ(SavedManifest().saved_by.data_type, "fp64");
}

TEST_F(TrainJobSavedByTest, TheSameMeansAreNoWarning) {
  EXPECT_THAT(WarningsAfter([](SavedBy*) {}), ElementsAre());
  EXPECT_THAT(WarningsAfter([](SavedBy* saved_by) { saved_by->threads = 77; }), ElementsAre())
      << "threads change no bits";
}

TEST_F(TrainJobSavedByTest, AnotherInstructionSetVersionOrNumberOfRanksIsNamed) {
  const std::string isa = IsaName(CurrentIsa());
  const auto other_isa = [](SavedBy* saved_by) { saved_by->isa = "abacus"; };
  EXPECT_THAT(WarningsAfter(other_isa), ElementsAre(absl::StrCat(kBegin, " instruction set abacus, now ", isa)));
  const auto other_version = [](SavedBy* saved_by) { saved_by->software = "0.1 of old"; };
  EXPECT_THAT(WarningsAfter(other_version), ElementsAre(absl::StrCat(kBegin, " version 0.1 of old, now test")));
  const auto all = [](SavedBy* saved_by) {
    *saved_by = {.world = 8, .threads = 1, .isa = "abacus", .software = "old", .data_type = saved_by->data_type};
  };
  EXPECT_THAT(WarningsAfter(all), ElementsAre(absl::StrCat(kBegin, " 8 ranks, now 2; instruction set abacus, now ", isa,
                                                           "; version old, now test")));
}

}  // namespace
}  // namespace switchyard
