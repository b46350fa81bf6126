// Jobs that pack experts: interrupted at any time they make the same decisions, and packing never fails a job.
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/packed_job_fixture.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/packing/packing_journal.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TrainJobPackingTest : public PackedJobFixture {};

TEST_F(TrainJobPackingTest, PacksWhileThatHelps) {
  jobs::JobSpec spec = Packed();
  spec.dtype = jobs::TrainDType::kF64;
  const std::vector<RankStory> stories = Run(spec, Attempt(1, Measured));
  Finishes(stories);
  std::vector<int32_t> packings, decided;
  for (const StepProgress& step : stories[0].steps) {
    packings.push_back(step.packing);
    if (step.packing_decided) decided.push_back(static_cast<int32_t>(step.step));
  }
  EXPECT_THAT(packings, ElementsAre(1, 1, 2, 2, 4, 4, 2, 2, 2, 2, 2, 2));
  EXPECT_THAT(decided, ElementsAre(3, 5, 7));
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>4 grows 7:4>2 undone");
  ForgetJob();
  spec.communication = Spec().communication;
  const std::vector<RankStory> unpacked = Run(spec, {.world = 4});
  for (size_t i = 0; i < 12; ++i) {
    const double expected = unpacked[0].steps[i].report.loss;
    EXPECT_NEAR(stories[0].steps[i].report.loss, expected, 1e-10 * expected) << i;
  }
  EXPECT_FALSE(std::filesystem::exists(JobPath(kPackingJournalName))) << "nothing is decided";
}

// Nothing but the journal knows: what the later attempts measure says otherwise.
TEST_F(TrainJobPackingTest, InterruptedAnywhereItEndsWithTheSameBits) {
  const Files expected = Whole();
  for (const int64_t at : {7, 8, 9, 11}) {
    for (const bool torn : {true, false}) {
      if (!torn && at == 7) continue;
      SCOPED_TRACE(testing::Message() << "step " << at << (torn ? " torn" : " stopped"));
      const AttemptOptions first = Attempt(1, Measured);
      const std::vector<RankStory> disturbed = Run(Packed(), torn ? TornAt(at, first) : StoppedAt(at, first));
      EXPECT_EQ(disturbed[0].end.outcome, torn ? jobs::TrainOutcome::kLost : jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> resumed = Run(Packed(), Attempt(2, Covered));
      Finishes(resumed);
      if (torn && at <= 8) {
        EXPECT_LE(resumed[0].start_step, 4) << "decisions come again";
      }
      EXPECT_TRUE(FilesOfStep(12) == expected);
      EXPECT_EQ(ReadAll(JobPath(kPackingJournalName)), whole_journal_);
      ForgetJob();
    }
  }
}

TEST_F(TrainJobPackingTest, InterruptedTwiceItEndsWithTheSameBits) {
  const Files expected = Whole();
  int64_t attempt = 1;
  EXPECT_EQ(Run(Packed(), TornAt(8, Attempt(attempt, Measured)))[0].end.outcome, jobs::TrainOutcome::kLost);
  // Where decisions come again, between them and behind them.
  for (const int64_t at : {5, 6, 8}) {
    const std::vector<RankStory> again = Run(Packed(), TornAt(at, Attempt(++attempt, Covered)));
    EXPECT_EQ(again[0].end.outcome, jobs::TrainOutcome::kLost);
    EXPECT_EQ(ReadAll(JobPath(kPackingJournalName)), whole_journal_);
  }
  Finishes(Run(Packed(), Attempt(++attempt, Covered)));
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

// What it has not decided before it is decided by the steps that are done then.
TEST_F(TrainJobPackingTest, DecidesWhatNoAttemptHasDecided) {
  EXPECT_EQ(Run(Packed(), StoppedAt(4, Attempt(1, Helping)))[0].end.outcome, jobs::TrainOutcome::kStopped);
  const std::vector<RankStory> resumed = Run(Packed(), Attempt(2, Helping));
  Finishes(resumed);
  EXPECT_EQ(resumed[0].steps[0].packing, 2);
  EXPECT_EQ(Journal(), "3:1>2 grows 7:2>4 grows 9:4>4 ranks") << "not after step 5, of which one step was measured";
}

// Another job with the same journal makes the same decisions.
TEST_F(TrainJobPackingTest, ARunIsRepeated) {
  const Files expected = Whole();
  std::filesystem::create_directories(JobPath());
  root_.Write("checkpoints/job/packing.log", whole_journal_);
  Finishes(Run(Packed(), Attempt(1, Covered)));
  EXPECT_TRUE(FilesOfStep(12) == expected);
}

TEST_F(TrainJobPackingTest, ADecisionThatIsNotOnTheDiskIsNotTaken) {
  const Files expected = Whole();
  const auto full = [](const std::string& path) -> absl::Status {
    if (!absl::StartsWith(path, "packing.log")) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(path, ": No space left on device"));
  };
  AttemptOptions options = Attempt(1, Measured);
  options.wrap_files = [&](std::unique_ptr<checkpoint::FileSystem> files, int) {
    return std::make_unique<HookedFileSystem>(std::move(files), full);
  };
  const std::vector<RankStory> stories = Run(Packed(), options);
  for (const RankStory& story : stories) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost) << story.end.status;
    EXPECT_EQ(story.end.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(story.end.status.message()), HasSubstr("rank 0: packing.log.tmp-1: No space left"));
  }
  EXPECT_EQ(stories[0].steps.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(JobPath(kPackingJournalName)));
  Finishes(Run(Packed(), Attempt(2, Measured)));
  EXPECT_TRUE(FilesOfStep(12) == expected);
  EXPECT_FALSE(std::filesystem::exists(JobPath("packing.log.tmp-1")));
}

TEST_F(TrainJobPackingTest, AJournalThatIsNoneIsNamed) {
  ASSERT_EQ(Run(Packed(), StoppedAt(6, Attempt(1, Measured)))[0].end.outcome, jobs::TrainOutcome::kStopped);
  const std::string good = ReadAll(JobPath(kPackingJournalName));
  PackingJournal wrong = *DecodePackingJournal(good);
  wrong.decisions[1].step = 6;
  const std::vector<std::pair<std::string, std::string>> bad = {
      {good.substr(0, good.size() / 2), "packing.log: damaged"},
      {"", "packing.log: damaged: it is empty"},
      {std::string(3000, '\0'), "packing.log: is no switchyard-packing"},
      {EncodePackingJournal(wrong), "packing.log: packing: \"after step 6: "},
  };
  for (const auto& [text, message] : bad) {
    root_.Write("checkpoints/job/packing.log", text);
    for (const RankStory& story : Run(Packed(), Attempt(2, Measured))) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFailed);
      EXPECT_THAT(std::string(story.end.status.message()), HasSubstr(message));
      EXPECT_FALSE(story.started);
    }
  }
  std::filesystem::remove(JobPath(kPackingJournalName));
  const std::vector<RankStory> resumed = Run(Packed(), Attempt(3, Measured));
  EXPECT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
  ASSERT_EQ(resumed[0].warnings.size(), 1u);
  EXPECT_THAT(resumed[0].warnings[0], HasSubstr("packing.log does not count: it says packing 1 where step-"));
}

// With as many replicas as ranks all but one have nothing to save.
TEST_F(TrainJobPackingTest, SavedPackedItGoesOnUnpackedAndOnOtherRanks) {
  jobs::JobSpec spec = Packed();
  spec.dtype = jobs::TrainDType::kF64;
  spec.micro_batch_sequences = 0;  // balance losses are of a micro-batch
  jobs::JobSpec plain = spec;
  plain.communication = Spec().communication;
  const std::vector<RankStory> whole = Run(plain, {.world = 1});
  ForgetJob();
  for (const bool other_ranks : {true, false}) {
    const std::vector<RankStory> packed = Run(spec, StoppedAt(6, Attempt(1, Measured)));
    ASSERT_EQ(packed[0].end.outcome, jobs::TrainOutcome::kStopped) << packed[0].end.status;
    EXPECT_EQ(packed[0].steps.back().packing, 4);
    const absl::StatusOr<checkpoint::Checkpoint> saved = checkpoint::Checkpoint::Open(JobPath("step-00000006"));
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_NE(saved->Find("model.layers.0.mlp.experts.7.down_proj.weight").entry, nullptr);
    EXPECT_LT(std::filesystem::file_size(JobPath("step-00000006/model-00004-of-00004.safetensors")), 200u);
    EXPECT_LT(std::filesystem::file_size(JobPath("step-00000006/optimizer-rank00003.safetensors")), 200u);
    const std::vector<RankStory> resumed =
        other_ranks ? Run(spec, Attempt(2, Measured, 2)) : Run(plain, {.world = 4, .attempt = 2});
    ASSERT_EQ(resumed[0].end.outcome, jobs::TrainOutcome::kFinished) << resumed[0].end.status;
    EXPECT_EQ(resumed[0].start_step, 6);
    EXPECT_NEAR(resumed[0].steps.back().report.loss, whole[0].steps.back().report.loss, 1e-10);
    if (other_ranks) {
      for (const RankStory& story : resumed) {
        ASSERT_EQ(story.warnings.size(), 2u);
        EXPECT_THAT(story.warnings[0], HasSubstr("packing.log does not count: packing: a decision for 4 ranks, there "
                                                 "are 2: after step 3"));
        EXPECT_THAT(story.warnings[0], HasSubstr("is decided anew"));
        EXPECT_THAT(story.warnings[1], HasSubstr("4 ranks, now 2"));
      }
      EXPECT_EQ(Journal(), "9:1>2 grows 11:2>1 undone");
    }
    ForgetJob();
  }
}

// Where there is no room packing stays as it is.
TEST_F(TrainJobPackingTest, ARankWithoutRoomKeepsTheJobRunning) {
  std::atomic<bool> scarce = false;
  AttemptOptions options = Attempt(1, Measured);
  options.available_memory = [&] { return scarce ? int64_t{1000} : kPlenty; };
  options.on_step = [&](TrainJob*, comm::Communicator*, const StepProgress& progress) { scarce = progress.step >= 2; };
  const std::vector<RankStory> stories = Run(Packed(), options);
  Finishes(stories);
  EXPECT_EQ(stories[0].steps.back().packing, 1);
  EXPECT_EQ(Journal(), "3:1>1 refused");
  EXPECT_THAT(ReadAll(JobPath(kPackingJournalName)), HasSubstr("why=rank 0: 2 more experts a layer take "));
}

// Nor does it fail where it was packed with more room than there is now.
TEST_F(TrainJobPackingTest, WithLessRoomItGoesOnUnpacked) {
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(root_.path() + "/checkpoints/model");
  ASSERT_TRUE(config.ok());
  const auto needed = [&](int64_t experts) {
    return static_cast<int64_t>(
        TrainingMemory(*config, {.dtype = DType::kF32, .experts_per_layer = experts, .rows = 24}).total());
  };
  // At a step that has them packed, and before one that will.
  for (const bool stopped : {true, false}) {
    const AttemptOptions first = Attempt(1, Measured);
    Run(Packed(), stopped ? StoppedAt(6, first) : TornAt(6, first));
    AttemptOptions options = Attempt(2, Measured);
    options.available_memory = [&] { return needed(4); };
    const std::vector<RankStory> resumed = Run(Packed(), options);
    for (const RankStory& story : resumed) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      ASSERT_EQ(story.warnings.size(), 1u);
      EXPECT_THAT(
          story.warnings[0],
          testing::AllOf(HasSubstr("packing.log does not count, as there is no room for its packing 4: rank 0: "),
                         HasSubstr("training needs at least")));
    }
    EXPECT_EQ(resumed[0].steps[0].packing, 1);
    ForgetJob();
  }
}

// In any mode: another order of sums is all that differs.
TEST_F(TrainJobPackingTest, TheSpecMayFixIt) {
  jobs::JobSpec spec = Spec();
  spec.dtype = jobs::TrainDType::kF64;
  const std::vector<RankStory> unpacked = Run(spec, {.world = 4});
  Finishes(unpacked);
  ForgetJob();
  for (const jobs::CommMode mode : {jobs::CommMode::kPreempt, jobs::CommMode::kFull}) {
    for (const int32_t replicas : {2, 4}) {
      SCOPED_TRACE(testing::Message() << jobs::CommModeName(mode) << " with " << replicas);
      spec.communication.mode = mode;
      spec.communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = replicas};
      const std::vector<RankStory> stories = Run(spec, Attempt(1, Measured));
      Finishes(stories);
      for (size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(stories[0].steps[i].packing, replicas);
        EXPECT_FALSE(stories[0].steps[i].packing_decided);
        const double expected = unpacked[0].steps[i].report.loss;
        EXPECT_NEAR(stories[0].steps[i].report.loss, expected, 1e-10 * expected) << i;
      }
      EXPECT_FALSE(std::filesystem::exists(JobPath(kPackingJournalName)));
      const Files files = FilesOfStep(12);
      ForgetJob();
      Run(spec, TornAt(8, Attempt(1, Measured)));
      Finishes(Run(spec, Attempt(2, Measured)));
      EXPECT_TRUE(FilesOfStep(12) == files) << "interrupted";
      ForgetJob();
    }
  }
}

// Each group of workers has all experts, so there may be more workers than experts.
TEST_F(TrainJobPackingTest, ReplicasAreForMoreWorkersThanExperts) {
  jobs::JobSpec spec = Spec();
  spec.batch_sequences = 16;
  spec.micro_batch_sequences = 1;
  spec.steps = 4;
  for (const RankStory& story : Run(spec, Attempt(1, Measured, 16))) {
    EXPECT_THAT(std::string(story.end.status.message()), HasSubstr("at most 8 workers"));
  }
  ForgetJob();
  spec.communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = 2};
  Finishes(Run(spec, Attempt(1, Measured, 16)));
}

TEST_F(TrainJobPackingTest, TrialsGoWithAnyMode) {
  jobs::JobSpec spec = Spec();
  spec.communication.packing = {.rule = jobs::PackingRule::kTrials, .replicas = 0};
  Finishes(Run(spec, Attempt(1, Measured)));
  EXPECT_EQ(Journal(), "3:1>2 grows 5:2>4 grows 7:4>2 undone");
}

// A fixed packing has to have room: the job did not leave the choice.
TEST_F(TrainJobPackingTest, WhatIsFixedMustFit) {
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(root_.path() + "/checkpoints/model");
  ASSERT_TRUE(config.ok());
  jobs::JobSpec spec = Spec();
  const auto run = [&](int32_t replicas) {
    spec.communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = replicas};
    AttemptOptions options = Attempt(1, Measured);
    const auto for_two =
        static_cast<int64_t>(TrainingMemory(*config, NeedOf(*config, spec, {.world = 4}, 2, false)).total());
    options.available_memory = [=] { return replicas == 3 ? kPlenty : for_two; };
    std::vector<RankStory> stories = Run(spec, options);
    ForgetJob();
    return stories;
  };
  Finishes(run(2));
  for (const RankStory& story : run(4)) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFailed);
    EXPECT_THAT(std::string(story.end.status.message()),
                testing::AllOf(HasSubstr("training needs at least"),
                               HasSubstr("with a communication.expert_packing below 4 each has fewer experts")));
  }
  for (const RankStory& story : run(3)) {
    EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFailed);
    EXPECT_THAT(std::string(story.end.status.message()),
                HasSubstr("3 replicas of each expert do not divide 4 workers"));
  }
}

// One rank has no replicas to make.
TEST_F(TrainJobPackingTest, OneRankDecidesNothing) {
  const std::vector<RankStory> stories = Run(Packed(), Attempt(1, Measured, 1));
  Finishes(stories);
  EXPECT_EQ(stories[0].steps.back().packing, 1);
  EXPECT_FALSE(std::filesystem::exists(JobPath(kPackingJournalName)));
}

}  // namespace
}  // namespace switchyard::train
