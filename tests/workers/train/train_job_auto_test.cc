// Jobs of each kind that has settings of its own, with the granularity that specs have by default, auto: they measure
// once, and an interrupted one ends with the bits of an undisturbed one that has the same chunks.log.
#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/workers/train/preference_jobs.h"
#include "workers/train/chunks/chunk_journal.h"

namespace switchyard::train {
namespace {

constexpr int64_t kSteps = 8;  // with a checkpoint in the middle

struct JobKind {
  const char* name;
  void (*set)(jobs::JobSpec* spec);
  int world = 2;
};
void PrintTo(const JobKind& kind, std::ostream* out) { *out << kind.name; }

constexpr JobKind kKinds[] = {
    {"LoraOfAttention",
     [](jobs::JobSpec* spec) {
       spec->lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "o_proj"}};
     }},
    {"LoraOfExperts",
     [](jobs::JobSpec* spec) {
       spec->lora = {.rank = 3, .alpha = 6, .targets = {"v_proj", "gate_up_proj", "down_proj"}};
     }},
    {"Preferences",
     [](jobs::JobSpec* spec) {
       spec->document_mask = true;
       spec->packing = jobs::WindowPacking::kBestFit;
       spec->sequence_length = 24;
       spec->dpo = {.beta = 0.2};
     }},
    {"ShardedDenseState", [](jobs::JobSpec* spec) { spec->zero = 1; }},
    {"WholeDocuments",
     [](jobs::JobSpec* spec) {
       spec->document_mask = true;
       spec->packing = jobs::WindowPacking::kBestFit;
     }},
    {"OffloadedState", [](jobs::JobSpec* spec) { spec->offload = jobs::OffloadPolicy::kAlways; }},
    {"OffloadedActivations",
     [](jobs::JobSpec* spec) {
       spec->restore = {pipeline::InputRestore::kOffload, pipeline::HiddenRestore::kOffload};
     }},
    {"Capacity", [](jobs::JobSpec* spec) { spec->capacity_factor = 1; }},
    {"Dropout",
     [](jobs::JobSpec* spec) {
       spec->dropout = {.embedding = 0.1, .hidden = 0.2, .attention = 0.3};
       spec->router_jitter = 0.1;
     }},
    // On two ranks no row of an expert with two replicas would travel, so there would be nothing to decide.
    {"PackedExperts",
     [](jobs::JobSpec* spec) { spec->communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = 2}; },
     /*world=*/4},
    {"Recompute", [](jobs::JobSpec* spec) { spec->recompute = true; }},
};

class TrainJobAutoTest : public PreferenceJobs, public testing::WithParamInterface<JobKind> {
 protected:
  TrainJobAutoTest() {
    std::filesystem::create_directories(OffloadDir());
    if (AutoSpec().has_pairs()) return;
    WriteTokens("a.bin", 0, 400, 256, /*trained=*/true, {0, 3, 4, 17, 30, 60, 66, 75, 80, 91, 100, 101, 110, 118, 250});
    WriteTokens("sub/b.bin", 1000, 300, 256, /*trained=*/true, {0, 7, 50, 61, 99, 111, 119, 177, 250, 277});
    WriteTokens("held_out.bin", 5000, 61, 256, /*trained=*/true, {0, 5, 21, 40});
  }

  std::string OffloadDir() const { return root_.path() + "/offload"; }
  jobs::JobSpec AutoSpec() const {
    jobs::JobSpec spec = Spec();
    spec.steps = kSteps;
    spec.communication = {};
    GetParam().set(&spec);
    return spec;
  }
  // Expects this end on all ranks; to be lost, the group breaks once the first checkpoint is complete.
  std::vector<RankStory> Attempt(int64_t attempt, jobs::TrainOutcome outcome) {
    AttemptOptions options = {.world = GetParam().world, .attempt = attempt, .offload_dir = OffloadDir()};
    options.on_saved = [outcome](TrainJob*, comm::Communicator* comm, const SavedStep&) {
      if (outcome == jobs::TrainOutcome::kLost) comm->Abort("torn down by the test");
    };
    std::vector<RankStory> stories = Run(AutoSpec(), options);
    for (const RankStory& story : stories) EXPECT_EQ(story.end.outcome, outcome) << story.end.status;
    return stories;
  }
  std::string Log() const { return ReadAll(JobPath(kChunkJournalName)); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, TrainJobAutoTest, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TrainJobAutoTest, MeasuresOnceAndGoesOnToTheSameBits) {
  Attempt(1, jobs::TrainOutcome::kLost);
  const std::string log = Log();
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(log);
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_TRUE(journal->decision.has_value());
  EXPECT_EQ(journal->decision->step, 0);

  const std::vector<RankStory> resumed = Attempt(2, jobs::TrainOutcome::kFinished);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(resumed[0].start_step, 4);
  EXPECT_EQ(Log(), log) << "it does not measure again";
  const std::map<std::string, std::string> files = FilesOfStep(kSteps);
  ForgetJob();

  std::filesystem::create_directories(JobPath());
  root_.Write("checkpoints/job/chunks.log", log);
  const std::vector<RankStory> undisturbed = Attempt(2, jobs::TrainOutcome::kFinished);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(undisturbed[0].start_step, 0);
  EXPECT_EQ(Log(), log) << "it does not measure again";
  for (const StepProgress& step : undisturbed[0].steps) EXPECT_EQ(step.report.chunks, journal->decision->chunks);
  EXPECT_TRUE(FilesOfStep(kSteps) == files);
}

}  // namespace
}  // namespace switchyard::train
