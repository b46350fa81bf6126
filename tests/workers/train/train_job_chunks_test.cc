// Jobs that choose into how many chunks MoE layers cut their rows: interrupted at any time they cut as they would have.
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/workers/train/comm_modes.h"
#include "tests/workers/train/hooked_file_system.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/chunks/chunk_journal.h"

namespace switchyard::train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Each number of chunks from 1 to 4 is measured in one step, behind one that does not count.
class TrainJobChunksTest : public JobFixture {
 protected:
  using Files = std::map<std::string, std::string>;
  using Times = int64_t (*)(int64_t step, const StepReport& report);

  // Two chunks are the fastest.
  static int64_t Measured(int64_t, const StepReport& report) { return report.chunks == 2 ? 50 : 60 + report.chunks; }
  static int64_t Otherwise(int64_t step, const StepReport& report) { return 1000 - 100 * report.chunks + step; }

  jobs::JobSpec SpecOf(const char* granularity, jobs::CommMode mode = jobs::CommMode::kPreempt) const {
    jobs::JobSpec spec = Spec();
    spec.communication.mode = mode;
    spec.communication.granularity = *jobs::ParseGranularity(granularity);
    return spec;
  }
  static AttemptOptions Attempt(int64_t attempt, Times times = &Measured, int world = 2) {
    AttemptOptions options;
    options.world = world;
    options.attempt = attempt;
    options.chunks = {.most = 4, .steps = 1};
    options.chunk_times = times;
    return options;
  }
  static AttemptOptions TornAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == at) comm->Abort("torn down by the test");
    };
    return options;
  }
  static AttemptOptions StoppedAt(int64_t at, AttemptOptions options) {
    options.on_step = [at](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == at) job->Stop(jobs::StopKind::kSave);
    };
    return options;
  }
  static void Finishes(const std::vector<RankStory>& stories) {
    for (const RankStory& story : stories) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kFinished) << story.end.status;
      EXPECT_THAT(story.warnings, IsEmpty());
    }
  }
  static std::vector<int32_t> ChunksOf(const RankStory& story) {
    std::vector<int32_t> chunks;
    for (const StepProgress& step : story.steps) chunks.push_back(step.report.chunks);
    return chunks;
  }
  std::string Log() const { return ReadAll(JobPath(kChunkJournalName)); }
  // "2:1>4 tried 4:4>2 tried …".
  std::string Journal() const {
    const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(Log());
    if (!journal.ok()) return journal.status().ToString();
    std::string text;
    for (const jobs::ChunkDecision& each : journal->decisions) {
      absl::StrAppend(&text, text.empty() ? "" : " ", each.step, ":", each.from, ">", each.to, " ",
                      jobs::ChunkReasonName(each.reason));
    }
    return text;
  }
  void WriteLog(const std::string& text) {
    std::filesystem::create_directories(JobPath());
    root_.Write("checkpoints/job/chunks.log", text);
  }
  // The decision of auto, as an attempt would have made it before that step.
  static std::string AutoLog(int64_t step, int32_t chunks, int world = 2) {
    return EncodeChunkJournal({.attempt = 1,
                               .decisions = {{.step = step,
                                              .world = world,
                                              .rows = 2 * 12 * world,
                                              .to = chunks,
                                              .reason = jobs::ChunkReason::kMeasured}}});
  }
  // The final files of a run without faults, and its journal; the job is removed afterwards.
  Files Whole() {
    const std::vector<RankStory> stories = Run(SpecOf("profile"), Attempt(1));
    Finishes(stories);
    EXPECT_THAT(ChunksOf(stories[0]), ElementsAre(1, 1, 4, 4, 2, 2, 3, 3, 2, 2, 2, 2));
    EXPECT_EQ(Journal(), "2:1>4 tried 4:4>2 tried 6:2>3 tried 8:3>2 found");
    EXPECT_THAT(stories[0].notes, testing::Contains(HasSubstr("; one minimum, chunks rise with rows")));
    whole_log_ = Log();
    Files files = FilesOfStep(12);
    ForgetJob();
    return files;
  }

  std::string whole_log_;
};

// Sums are the same in all modes, so with one number of chunks bits are; with another they are not.
TEST_F(TrainJobChunksTest, EveryModeCutsAsItIsTold) {
  const Files uncut = Undisturbed(SpecOf("1"), 2);
  Files cut;
  for (const jobs::CommMode mode : AllCommModes()) {
    SCOPED_TRACE(jobs::CommModeName(mode));
    const std::vector<RankStory> stories = Run(SpecOf("3", mode), Attempt(1));
    Finishes(stories);
    EXPECT_THAT(ChunksOf(stories[0]), Each(3));
    if (cut.empty()) cut = FilesOfStep(12);
    EXPECT_TRUE(FilesOfStep(12) == cut);
    EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName))) << "nothing is decided";
    ForgetJob();
  }
  EXPECT_FALSE(uncut == cut);
}

// Nothing but the journal knows: what the later attempts measure says otherwise.
TEST_F(TrainJobChunksTest, InterruptedAnywhereItEndsWithTheSameBits) {
  const Files expected = Whole();
  for (const int64_t at : {8, 9, 11}) {
    for (const bool torn : {true, false}) {
      if (!torn && at == 8) continue;
      SCOPED_TRACE(testing::Message() << "step " << at << (torn ? " torn" : " stopped"));
      const std::vector<RankStory> disturbed =
          Run(SpecOf("profile"), torn ? TornAt(at, Attempt(1)) : StoppedAt(at, Attempt(1)));
      EXPECT_EQ(disturbed[0].end.outcome, torn ? jobs::TrainOutcome::kLost : jobs::TrainOutcome::kStopped);
      const std::vector<RankStory> resumed = Run(SpecOf("profile"), Attempt(2, &Otherwise));
      Finishes(resumed);
      EXPECT_LE(resumed[0].start_step, torn && at == 8 ? 4 : at) << "decisions come again";
      EXPECT_TRUE(FilesOfStep(12) == expected);
      EXPECT_EQ(Log(), whole_log_);
      ForgetJob();
    }
  }
}

// What was not decided before an interruption is decided by what is measured then, and a run that is given the journal
// ends with the same bits.
TEST_F(TrainJobChunksTest, WhatIsDecidedLaterIsRepeatedByAnUndisturbedRun) {
  EXPECT_EQ(Run(SpecOf("profile"), TornAt(3, Attempt(1)))[0].end.outcome, jobs::TrainOutcome::kLost);
  EXPECT_EQ(Journal(), "2:1>4 tried");
  EXPECT_EQ(Run(SpecOf("profile"), TornAt(7, Attempt(2, &Otherwise)))[0].end.outcome, jobs::TrainOutcome::kLost);
  EXPECT_EQ(Journal(), "2:1>4 tried 4:4>2 tried 6:2>1 found");
  const std::vector<RankStory> resumed = Run(SpecOf("profile"), Attempt(3));
  Finishes(resumed);
  const Files expected = FilesOfStep(12);
  const std::string log = Log();
  ForgetJob();
  WriteLog(log);
  const std::vector<RankStory> repeated = Run(SpecOf("profile"), Attempt(3));
  Finishes(repeated);
  EXPECT_THAT(ChunksOf(repeated[0]), ElementsAre(1, 1, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1));
  EXPECT_TRUE(FilesOfStep(12) == expected);
  EXPECT_EQ(Log(), log);
}

TEST_F(TrainJobChunksTest, AutoMeasuresAndDecidesBeforeTheFirstStep) {
  const std::vector<RankStory> stories = Run(SpecOf("auto"), TornAt(6, Attempt(1)));
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kLost);
  const std::string log = Log();
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(log);
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_THAT(journal->decisions, SizeIs(1));
  const jobs::ChunkDecision& decision = journal->decisions[0];
  EXPECT_EQ(decision.step, 0);
  EXPECT_EQ(decision.rows, 48);
  EXPECT_EQ(decision.reason, jobs::ChunkReason::kMeasured);
  EXPECT_THAT(decision.to, testing::AnyOf(1, 2, 4));
  EXPECT_THAT(decision.why, testing::ContainsRegex("^1 chunk .* ms, 2 chunks .* ms, 4 chunks .* ms; measured in "));
  EXPECT_THAT(ChunksOf(stories[0]), Each(decision.to));
  EXPECT_THAT(stories[0].notes, testing::Contains(decision.ToString()));
  // It does not measure again.
  const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(2));
  Finishes(resumed);
  EXPECT_EQ(Log(), log);
  const Files files = FilesOfStep(12);
  ForgetJob();
  EXPECT_TRUE(Undisturbed(SpecOf(absl::StrCat(decision.to).c_str()), 2) == files);
}

TEST_F(TrainJobChunksTest, KilledBehindTheDecisionOfAutoItCutsAlike) {
  const Files expected = Undisturbed(SpecOf("3"), 2);
  for (const int64_t at : {1, 6}) {
    WriteLog(AutoLog(0, 3));
    EXPECT_EQ(Run(SpecOf("auto"), TornAt(at, Attempt(1)))[0].end.outcome, jobs::TrainOutcome::kLost);
    const std::vector<RankStory> resumed = Run(SpecOf("auto"), Attempt(2));
    Finishes(resumed);
    EXPECT_THAT(ChunksOf(resumed[0]), Each(3));
    EXPECT_TRUE(FilesOfStep(12) == expected);
    ForgetJob();
  }
}

// Layers are measured with their activations in a file.
TEST_F(TrainJobChunksTest, AutoMeasuresWhatIsRestored) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.restore = {pipeline::InputRestore::kOffload, pipeline::HiddenRestore::kOffload};
  AttemptOptions options = Attempt(1);
  std::filesystem::create_directories(root_.path() + "/offload");
  options.offload_dir = root_.path() + "/offload";
  Finishes(Run(spec, options));
  EXPECT_THAT(Journal(), testing::ContainsRegex("^0:1>[124] measured$"));
}

// The next attempt measures what the decision was made of again.
TEST_F(TrainJobChunksTest, ADecisionThatIsNotOnTheDiskIsNotTaken) {
  const std::pair<const char*, const char*> kJournals[] = {
      {"profile", "^2:1>4 tried 4:4>2 tried 6:2>3 tried 8:3>2 found$"}, {"auto", "^0:1>[124] measured$"}};
  for (const auto& [granularity, journal] : kJournals) {
    SCOPED_TRACE(granularity);
    int writes = 0;  // the first is of an empty journal
    AttemptOptions options = Attempt(1);
    const auto full = [&](const std::string& path) -> absl::Status {
      if (!absl::StartsWith(path, "chunks.log") || path == "chunks.log" || ++writes == 1) return absl::OkStatus();
      return absl::ResourceExhaustedError(absl::StrCat(path, ": No space left on device"));
    };
    options.wrap_files = [&](std::unique_ptr<checkpoint::FileSystem> files, int rank) {
      if (rank > 0) return files;
      return std::unique_ptr<checkpoint::FileSystem>(std::make_unique<HookedFileSystem>(std::move(files), full));
    };
    for (const RankStory& story : Run(SpecOf(granularity), options)) {
      EXPECT_EQ(story.end.outcome, jobs::TrainOutcome::kLost) << story.end.status;
      EXPECT_THAT(std::string(story.end.status.message()), HasSubstr("rank 0: chunks.log.tmp-1: No space left"));
    }
    EXPECT_THAT(Journal(), IsEmpty());
    const std::vector<RankStory> next = Run(SpecOf(granularity), Attempt(2));
    Finishes(next);
    EXPECT_EQ(next[0].start_step, 0);
    EXPECT_THAT(Journal(), testing::ContainsRegex(journal));
    ForgetJob();
  }
}

TEST_F(TrainJobChunksTest, GoesWithReplicasOfExperts) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.communication.packing = {.rule = jobs::PackingRule::kFixed, .replicas = 2};
  const std::vector<RankStory> stories = Run(spec, Attempt(1, &Measured, 4));
  Finishes(stories);
  EXPECT_THAT(Journal(), testing::ContainsRegex("^0:1>[124] measured$"));
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(Log());
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(journal->decisions[0].rows, 2 * 12 * 4) << "of all ranks";
  for (const StepProgress& step : stories[0].steps) EXPECT_EQ(step.report.chunks, journal->decisions[0].to);
  ForgetJob();
  // With an expert on every rank no row leaves its own.
  spec.communication.packing.replicas = 4;
  Finishes(Run(spec, Attempt(1, &Measured, 4)));
  EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName)));
  ForgetJob();
  spec.communication.granularity = {.rule = jobs::ChunkRule::kProfile};
  spec.communication.packing.replicas = 2;
  Finishes(Run(spec, Attempt(1, &Measured, 4)));
  EXPECT_EQ(Journal(), "2:1>4 tried 4:4>2 tried 6:2>3 tried 8:3>2 found");
}

// What auto has decided stays, whatever the trials of packing change.
TEST_F(TrainJobChunksTest, AutoGoesWithTrialsOfPacking) {
  jobs::JobSpec spec = SpecOf("auto");
  spec.communication.packing = {.rule = jobs::PackingRule::kTrials, .replicas = 0};
  AttemptOptions options = Attempt(1, &Measured, 4);
  options.packing = {.first_step = 3, .every_steps = 2};
  options.packing_times = [](int64_t step, const StepReport&) -> jobs::PackingTimes {
    return {.experts_ns = 1000,
            .all_to_all_ns = 4000,
            .micro_ops = 1,
            .step_ns = 1'000'000 * (100 - step),  // each doubling helps
            .sums_ns = 1'000'000,
            .steps = 1};
  };
  const std::vector<RankStory> stories = Run(spec, options);
  Finishes(stories);
  EXPECT_GT(stories[0].steps.back().packing, 1);
  EXPECT_THAT(Journal(), testing::ContainsRegex("^0:1>[124] measured$"));
  EXPECT_THAT(ChunksOf(stories[0]), Each(stories[0].steps[0].report.chunks));
}

TEST_F(TrainJobChunksTest, AJournalThatDoesNotCount) {
  // Of other ranks.
  WriteLog(AutoLog(0, 3, 4));
  const std::vector<RankStory> other = Run(SpecOf("auto"), Attempt(2));
  EXPECT_EQ(other[0].end.outcome, jobs::TrainOutcome::kFinished);
  ASSERT_THAT(other[0].warnings, SizeIs(1));
  EXPECT_THAT(other[0].warnings[0],
              HasSubstr("chunks.log does not count: chunks: a decision for 4 ranks, there are 2: after step 0"));
  EXPECT_THAT(other[0].warnings[0], HasSubstr("into how many chunks layers are cut is decided anew"));
  ForgetJob();
  // Removed.
  EXPECT_EQ(Run(SpecOf("profile"), StoppedAt(5, Attempt(1)))[0].end.outcome, jobs::TrainOutcome::kStopped);
  std::filesystem::remove(JobPath(kChunkJournalName));
  const std::vector<RankStory> removed = Run(SpecOf("profile"), Attempt(2));
  EXPECT_EQ(removed[0].end.outcome, jobs::TrainOutcome::kFinished);
  ASSERT_THAT(removed[0].warnings, SizeIs(1));
  EXPECT_THAT(removed[0].warnings[0], HasSubstr("chunks.log is not there; into how many chunks"));
  EXPECT_EQ(Journal(), "7:1>4 tried 9:4>2 tried 11:2>3 tried");
  ForgetJob();
  // Another's.
  WriteLog(EncodeChunkJournal({.attempt = 1, .decisions = {{.step = 2, .world = 2, .rows = 48, .from = 2}}}));
  ExpectEnd(Run(SpecOf("profile"), Attempt(2)), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "chunks.log: chunks: \"after step 2: chunks 2 -> 1 of 48 rows, a step took 0 ms (tried)\" does not follow "
            "from 1 chunks");
}

// Nothing travels.
TEST_F(TrainJobChunksTest, OneRankDecidesNothing) {
  for (const char* granularity : {"auto", "profile"}) {
    const std::vector<RankStory> stories = Run(SpecOf(granularity), Attempt(1, &Measured, 1));
    Finishes(stories);
    EXPECT_THAT(ChunksOf(stories[0]), Each(1));
    EXPECT_FALSE(std::filesystem::exists(JobPath(kChunkJournalName)));
    ForgetJob();
  }
}

}  // namespace
}  // namespace switchyard::train
